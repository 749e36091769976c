//! Policies: a text with label, number and share, signed.

use data_encoding::HEXLOWER_PERMISSIVE;
use serde::{Deserialize, Serialize};
use thalweg_units::random::{Random, hash_bytes};

use super::{WireError, read_document, write_document};
use crate::keys::{KeyError, PublicKey, SigningKey};
use crate::names::Name;
use crate::text::one_line;

/// Version of the format.
pub const FORMAT: u64 = 1;
/// Largest message, bytes.
pub const MAX_BYTES: usize = 512 << 10;
/// Longest text, bytes.
pub const TEXT_MAX: usize = 128 << 10;
/// All agents, in parts per million.
pub const ALL_PPM: u32 = 1_000_000;
/// Prefix of the signed bytes: a signature of anything else is no signature of a policy.
const DOMAIN: &[u8] = b"thalweg fleet policy\0";

/// A policy of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Agents with this label obey it.
    pub label: Name,
    /// Larger than that of the policy before it, from 1.
    pub number: u64,
    /// Time of the signature, s since 1970 by the signer's clock; shown, and never compared.
    pub time_s: u64,
    /// Share of the agents that take it first, parts per million.
    pub canary_ppm: u32,
    /// The policy file; empty: the policy of this label is removed.
    pub text: String,
}

/// A policy and its signature, which is not verified yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    policy: Policy,
    key: String,
    signature: [u8; 64],
}

/// Why an agent does not obey a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyRejection {
    /// The agent's configuration does not name the key.
    #[error("policy {label} {number}: signed by {key}, which `keys` does not name")]
    UnknownKey {
        /// The policy's label.
        label: Name,
        /// The policy's number.
        number: u64,
        /// The signer's public key.
        key: String,
    },
    /// The signature is of something else.
    #[error("policy {label} {number}: the signature is not that of {key} for this policy")]
    Signature {
        /// The policy's label.
        label: Name,
        /// The policy's number.
        number: u64,
        /// The signer's public key.
        key: String,
    },
    /// The policy lies under another label's key.
    #[error("policy {label} {number}: found under label {found}")]
    Label {
        /// The policy's label.
        label: Name,
        /// The policy's number.
        number: u64,
        /// Label under which the policy lies.
        found: Name,
    },
    /// The policy is not newer than the one that the agent has.
    #[error("policy {label} {number}: not above number {has}, which was obeyed before")]
    Old {
        /// The policy's label.
        label: Name,
        /// The policy's number.
        number: u64,
        /// The number that the agent has.
        has: u64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: u64,
    label: Name,
    number: u64,
    time_s: u64,
    canary_ppm: u32,
    text: String,
    key: String,
    signature: String,
}

/// Turn of an agent with this label, parts per million: a share takes those of the first turns. It is
/// the same for all policies, so whoever is among the first 5 % is among the first 25 %.
pub fn canary_turn(agent: &Name, label: &Name) -> u32 {
    // A step of the generator spreads the bits of the hash.
    let bytes = agent.as_str().bytes().chain([0]);
    let hash = hash_bytes(bytes.chain(label.as_str().bytes()));
    Random::new(hash).below(u64::from(ALL_PPM)) as u32
}

impl Policy {
    /// Whether this agent takes it: all do, or those whose turn comes first.
    pub fn is_for(&self, agent: &Name) -> bool {
        canary_turn(agent, &self.label) < self.canary_ppm
    }

    /// Signs it.
    ///
    /// # Errors
    /// A field is out of bounds.
    pub fn sign(self, key: &SigningKey) -> Result<Signed, WireError> {
        self.check_fields()?;
        let public = key.public_key().to_string();
        let signature = key.sign_bytes(&self.signed_bytes(&public));
        Ok(Signed {
            policy: self,
            key: public,
            signature,
        })
    }

    fn check_fields(&self) -> Result<(), WireError> {
        if self.number == 0 || self.number > 1 << 53 {
            return Err(WireError::wrong_field("number", self.number, "1 to 2^53"));
        }
        if self.canary_ppm == 0 || self.canary_ppm > ALL_PPM {
            return Err(WireError::wrong_field(
                "canary_ppm",
                self.canary_ppm,
                "1 to 1000000",
            ));
        }
        if self.text.len() > TEXT_MAX {
            let found = format!("{} bytes", self.text.len());
            return Err(WireError::wrong_field("text", found, "at most 131072"));
        }
        Ok(())
    }

    /// Bytes that are signed: each field with a length, so that no other policy has the same bytes.
    fn signed_bytes(&self, key: &str) -> Vec<u8> {
        let mut bytes = DOMAIN.to_vec();
        bytes.extend(FORMAT.to_be_bytes());
        for number in [self.number, self.time_s, self.canary_ppm.into()] {
            bytes.extend(number.to_be_bytes());
        }
        for text in [key, self.label.as_str(), &self.text] {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    }
}

impl Signed {
    /// Reads a message. Its signature is not verified.
    ///
    /// # Errors
    /// The message is too large, of another version, or has a field out of bounds.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let document: Document = read_document(bytes, MAX_BYTES, FORMAT)?;
        let policy = Policy {
            label: document.label,
            number: document.number,
            time_s: document.time_s,
            canary_ppm: document.canary_ppm,
            text: document.text,
        };
        policy.check_fields()?;
        let signature = HEXLOWER_PERMISSIVE.decode(document.signature.as_bytes());
        let signature = signature
            .ok()
            .and_then(|it| it.try_into().ok())
            .ok_or_else(|| {
                let found = one_line(&document.signature, 20);
                WireError::wrong_field("signature", format!("{found:?}"), "128 hexadecimal digits")
            })?;
        let key = PublicKey::parse(&document.key)
            .map_err(|error: KeyError| WireError::Form(format!("key: {error}")))?;
        Ok(Self {
            policy,
            key: key.to_string(),
            signature,
        })
    }

    /// The message.
    pub fn encode(&self) -> Vec<u8> {
        let policy = &self.policy;
        write_document(&Document {
            format: FORMAT,
            label: policy.label.clone(),
            number: policy.number,
            time_s: policy.time_s,
            canary_ppm: policy.canary_ppm,
            text: policy.text.clone(),
            key: self.key.clone(),
            signature: HEXLOWER_PERMISSIVE.encode(&self.signature),
        })
    }

    /// The policy, if this agent obeys it: found under its own label, signed by one of the keys, and
    /// with a number above that which the agent has of this label.
    ///
    /// # Errors
    /// The agent does not obey the policy.
    pub fn verify_for(
        &self,
        found: &Name,
        keys: &[PublicKey],
        has: Option<u64>,
    ) -> Result<&Policy, PolicyRejection> {
        let policy = &self.policy;
        let (label, number, key) = (policy.label.clone(), policy.number, self.key.clone());
        let Some(signer) = keys.iter().find(|it| it.to_string() == key) else {
            return Err(PolicyRejection::UnknownKey { label, number, key });
        };
        if !signer.verify_signature(&policy.signed_bytes(&key), &self.signature) {
            return Err(PolicyRejection::Signature { label, number, key });
        }
        if label != *found {
            let found = found.clone();
            return Err(PolicyRejection::Label {
                label,
                number,
                found,
            });
        }
        match has {
            Some(has) if number <= has => Err(PolicyRejection::Old { label, number, has }),
            _ => Ok(policy),
        }
    }

    /// The policy, whoever signed it: to be shown, not obeyed.
    pub fn unverified(&self) -> &Policy {
        &self.policy
    }

    /// The signer's public key, as it says.
    pub fn signer_key(&self) -> &str {
        &self.key
    }
}
