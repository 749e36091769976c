//! Ed25519 keys as NKeys: text with a prefix for the kind, and a checksum. Policies are signed by
//! keys of modules (`M…`, seeds `SM…`); agents connect with keys of users (`U…`, seeds `SU…`).

use std::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nkeys::{KeyPair, KeyPairType};
use thalweg_units::file;

/// Why there is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A text is none, or a file has none that may be used.
    #[error("{0}")]
    Wrong(String),
    /// A file cannot be read now, and perhaps later.
    #[error("{0}")]
    Unread(String),
}

/// A public key that verifies policies.
#[derive(Clone)]
pub struct PublicKey(KeyPair, String);

impl PublicKey {
    /// The key of this text.
    ///
    /// # Errors
    /// The text is no key, or a key of another kind.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let found = crate::text::one_line(text, 64);
        let expected = "expected a public key of policies (M and 55 characters)";
        let wrong = || KeyError::Wrong(format!("found {found:?}, {expected}"));
        let key = KeyPair::from_public_key(text).map_err(|_| wrong())?;
        match key.key_pair_type() {
            KeyPairType::Module => Ok(Self(key, text.to_owned())),
            _ => Err(wrong()),
        }
    }

    /// Whether this key signed these bytes.
    pub fn verify_signature(&self, bytes: &[u8], signature: &[u8; 64]) -> bool {
        self.0.verify(bytes, signature).is_ok()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.1)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.1)
    }
}

impl PartialEq for PublicKey {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl Eq for PublicKey {}

/// A key that signs policies. Its seed is never shown.
pub struct SigningKey(KeyPair);

impl fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SigningKey({})", self.public_key())
    }
}

impl SigningKey {
    /// A new one.
    pub fn generate() -> Self {
        Self(KeyPair::new_module())
    }

    /// The key of a file that only its owner may read.
    ///
    /// # Errors
    /// Others may read the file, it cannot be read, or has no such key.
    pub fn read_file(file: &Path) -> Result<Self, KeyError> {
        let what = "one that signs policies (SM…)";
        read_seed(file, KeyPairType::Module, what).map(Self)
    }

    /// The key of a file, which is made with mode 0600 where there is none.
    ///
    /// # Errors
    /// As [`Self::read_file`], or the file cannot be written.
    pub fn read_or_create(file: &Path) -> Result<Self, KeyError> {
        read_or_create(file, Self::read_file, |file| {
            Self::generate().write_new(file)
        })
    }

    /// Writes a new file with mode 0600.
    ///
    /// # Errors
    /// The file exists, or cannot be written.
    pub fn write_new(&self, file: &Path) -> Result<(), KeyError> {
        write_seed(&self.0, file)
    }

    /// Public key of this signing key.
    pub fn public_key(&self) -> PublicKey {
        let text = self.0.public_key();
        PublicKey::parse(&text).expect("the key is of this kind")
    }

    /// The signature of these bytes.
    pub(crate) fn sign_bytes(&self, bytes: &[u8]) -> [u8; 64] {
        let signature = self.0.sign(bytes).expect("it has a seed");
        signature
            .try_into()
            .expect("Ed25519 signatures have 64 bytes")
    }
}

/// A key with which an agent or operator connects to a server. Its seed is never shown.
pub struct UserKey(KeyPair);

impl fmt::Debug for UserKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "UserKey({})", self.public_key())
    }
}

impl UserKey {
    /// A new one.
    pub fn generate() -> Self {
        Self(KeyPair::new_user())
    }

    /// The key of a file that only its owner may read.
    ///
    /// # Errors
    /// Others may read the file, it cannot be read, or has no such key.
    pub fn read_file(file: &Path) -> Result<Self, KeyError> {
        read_seed(file, KeyPairType::User, "a user's (SU…)").map(Self)
    }

    /// The key of a file, which is made with mode 0600 where there is none.
    ///
    /// # Errors
    /// As [`Self::read_file`], or the file cannot be written.
    pub fn read_or_create(file: &Path) -> Result<Self, KeyError> {
        read_or_create(file, Self::read_file, |file| {
            Self::generate().write_new(file)
        })
    }

    /// Writes a new file with mode 0600.
    ///
    /// # Errors
    /// The file exists, or cannot be written.
    pub fn write_new(&self, file: &Path) -> Result<(), KeyError> {
        write_seed(&self.0, file)
    }

    /// Public key of this user, as a server's configuration has it.
    pub fn public_key(&self) -> String {
        self.0.public_key()
    }

    pub(crate) fn seed_text(&self) -> String {
        self.0.seed().expect("it has a seed")
    }
}

/// Text of a secret file: small, and of nobody but its owner.
///
/// # Errors
/// Others may read the file, or it cannot be read.
pub(crate) fn read_secret(file: &Path) -> Result<String, KeyError> {
    let bytes = file::read_bytes(file, 64 << 10).map_err(|error| match error.may_pass() {
        true => KeyError::Unread(error.to_string()),
        false => KeyError::Wrong(error.to_string()),
    })?;
    let failed = |why: &dyn fmt::Display| KeyError::Wrong(format!("{}: {why}", file.display()));
    let mode = file.metadata().map_err(|why| failed(&why))?.mode() & 0o777;
    if mode & 0o077 != 0 {
        let why = format!("found mode {mode:04o}, expected 0600: others may read the secret");
        return Err(failed(&why));
    }
    String::from_utf8(bytes).map_err(|_| failed(&"found bytes that are not text"))
}

/// The key of a file with one seed, of a kind that `what` puts into words.
fn read_seed(file: &Path, kind: KeyPairType, what: &str) -> Result<KeyPair, KeyError> {
    let text = read_secret(file)?;
    let lines = text.lines().map(str::trim);
    let mut seeds = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (seeds.next().map(KeyPair::from_seed), seeds.next()) {
        (Some(Ok(key)), None) if key.key_pair_type() == kind => Ok(key),
        (Some(Ok(_)), None) => Err(KeyError::Wrong(format!(
            "{}: found another kind of seed, expected {what}",
            file.display()
        ))),
        // Never the line itself: it may be a secret with a typing error.
        _ => Err(KeyError::Wrong(format!(
            "{}: found no seed, expected one line such as SU… or SM…",
            file.display()
        ))),
    }
}

/// The key of a file. Where there is none it is made; of several callers at a time, by one.
fn read_or_create<K>(
    file: &Path,
    read: impl Fn(&Path) -> Result<K, KeyError>,
    make: impl Fn(&Path) -> Result<(), KeyError>,
) -> Result<K, KeyError> {
    if !file.exists() {
        make(file).or_else(|error| if file.exists() { Ok(()) } else { Err(error) })?;
    }
    read(file)
}

fn write_seed(key: &KeyPair, file: &Path) -> Result<(), KeyError> {
    let seed = key.seed().expect("it has a seed");
    let written = file::create_new(file, 0o600, format!("{seed}\n").as_bytes());
    written.map_err(|why| {
        let why = match why.kind() {
            ErrorKind::AlreadyExists => {
                "it exists; a key that is in use must not be lost".to_owned()
            }
            _ => why.to_string(),
        };
        KeyError::Wrong(format!("cannot write {}: {why}", file.display()))
    })
}
