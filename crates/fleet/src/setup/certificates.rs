//! A CA of these servers alone, and their certificates.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::{SetupError, write_file};
use crate::keys::read_secret;

const DAY: Duration = Duration::from_secs(86_400);

/// When a certificate holds.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// From when on.
    pub from: SystemTime,
    /// Until when.
    pub until: SystemTime,
}

impl Default for Validity {
    /// From yesterday, as clocks differ, for two years.
    fn default() -> Self {
        let now = SystemTime::now();
        Self {
            from: now - DAY,
            until: now + DAY * 730,
        }
    }
}

/// A CA.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, for ten years.
    ///
    /// # Errors
    /// None that is known.
    pub fn generate() -> Result<Self, SetupError> {
        let key = KeyPair::generate()?;
        let parameters = ca_parameters();
        let pem = parameters.self_signed(&key)?.pem();
        Ok(Self {
            pem,
            issuer: Issuer::new(parameters, key),
        })
    }

    /// Reads the authority of a directory, or creates one there.
    pub(super) fn read_or_create(directory: &Path) -> Result<Self, SetupError> {
        let (certificate, key) = (directory.join("ca.pem"), directory.join("ca.key"));
        if certificate.exists() {
            let pem = thalweg_units::file::read_text(&certificate)
                .map_err(|why| SetupError::Wrong(why.to_string()))?;
            let key = KeyPair::from_pem(&read_secret(&key)?)?;
            return Ok(Self {
                pem,
                issuer: Issuer::new(ca_parameters(), key),
            });
        }
        let made = Self::generate()?;
        write_file(&key, &made.issuer.key().serialize_pem(), 0o600)?;
        write_file(&certificate, &made.pem, 0o644)?;
        Ok(made)
    }

    /// The CA's certificate, as PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for a server of this name or address, and its key, as PEM. Servers of a
    /// cluster show it each other, too.
    ///
    /// # Errors
    /// The host is neither a name nor an address.
    pub fn server_certificate(
        &self,
        host: &str,
        validity: Validity,
    ) -> Result<(String, String), SetupError> {
        let mut parameters = CertificateParams::new(vec![host.to_owned()])?;
        parameters.distinguished_name.push(DnType::CommonName, host);
        parameters.not_before = validity.from.into();
        parameters.not_after = validity.until.into();
        parameters.use_authority_key_identifier_extension = true;
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// Parameters of the CA's certificate.
fn ca_parameters() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters
        .distinguished_name
        .push(DnType::CommonName, "Thalweg fleet");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = SystemTime::now();
    parameters.not_before = (now - DAY).into();
    parameters.not_after = (now + DAY * 3650).into();
    parameters
}
