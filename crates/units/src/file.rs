//! Files that users name. They are read whole up to a size limit, and replaced whole or not at all.

use std::fs::{self, File, FileType, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::fault::Faults;
use crate::reader;

/// Largest size of files whose kind has no limit of its own.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A system call failed.
    #[error("cannot read {}: {why}", .file.display())]
    System {
        /// The file.
        file: PathBuf,
        /// The error.
        why: io::Error,
    },
    /// The file is a directory, a device or a pipe.
    #[error("cannot read {}: found {found}, expected a regular file", .file.display())]
    Kind {
        /// The file.
        file: PathBuf,
        /// The kind of file.
        found: &'static str,
    },
    /// The file is too large.
    #[error("cannot read {}: found more than {max} bytes, expected at most that", .file.display())]
    Size {
        /// The file.
        file: PathBuf,
        /// Limit, bytes.
        max: u64,
    },
    /// The file is not text.
    #[error(transparent)]
    Text(#[from] Faults),
}

impl ReadError {
    /// Whether there is no such file.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::System { why, .. } if why.kind() == io::ErrorKind::NotFound)
    }

    fn of_system(file: &Path) -> impl Fn(io::Error) -> Self {
        |why| Self::System {
            file: file.to_owned(),
            why,
        }
    }

    fn check_length(file: &Path, length: u64, max: u64) -> Result<(), Self> {
        if length > max {
            return Err(Self::Size {
                file: file.to_owned(),
                max,
            });
        }
        Ok(())
    }

    /// Whether the same file may be readable later, as after an error of a disk.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::System { why, .. } if error_may_pass(why))
    }
}

/// Whether an error of opening or reading a file may pass by itself: it is not that the file is
/// missing, or may not be read.
pub fn error_may_pass(why: &io::Error) -> bool {
    !matches!(
        why.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    )
}

/// The bytes of a regular file, at most `max`.
///
/// # Errors
/// The file cannot be read, is no regular file, or is larger.
pub fn read_bytes(file: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    read_open(open_regular(file, max)?, file, max)
}

/// The bytes of a file that [`open_regular`] has opened, at most `max`; `file` is for messages.
///
/// # Errors
/// The file cannot be read, or is larger by now.
pub fn read_open(opened: File, file: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    // One more byte reveals a file that grows meanwhile, or whose length is unknown.
    opened
        .take(max.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(ReadError::of_system(file))?;
    ReadError::check_length(file, bytes.len() as u64, max)?;
    Ok(bytes)
}

/// A regular file of at most `max` bytes, open for reading. It may grow later.
///
/// # Errors
/// As [`read_bytes`].
pub fn open_regular(file: &Path, max: u64) -> Result<File, ReadError> {
    let system = ReadError::of_system(file);
    let regular = |kind: FileType| match not_regular(kind) {
        None => Ok(()),
        Some(found) => Err(ReadError::Kind {
            file: file.to_owned(),
            found,
        }),
    };
    // The name is checked first, because opening a device may already have an effect.
    regular(fs::metadata(file).map_err(&system)?.file_type())?;
    // Opening must not block, whatever has replaced the file since then.
    let open = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(file)
        .map_err(&system)?;
    let metadata = open.metadata().map_err(&system)?;
    regular(metadata.file_type())?;
    ReadError::check_length(file, metadata.len(), max)?;
    Ok(open)
}

/// The text of a regular file of at most [`MAX_FILE_BYTES`].
///
/// # Errors
/// As [`read_bytes`] and [`decode_text`].
pub fn read_text(file: &Path) -> Result<String, ReadError> {
    Ok(decode_text(read_bytes(file, MAX_FILE_BYTES)?, file)?)
}

/// Standard input, at most `max` bytes, as an unnamed file, at its beginning.
///
/// # Errors
/// The file cannot be read, or is longer; or the directory of temporary files is full.
pub fn standard_input(max: u64) -> Result<File, ReadError> {
    let name = Path::new("standard input");
    let spool = || -> io::Result<(File, u64)> {
        let mut file = tempfile::tempfile()?;
        let length = io::copy(
            &mut io::stdin().lock().take(max.saturating_add(1)),
            &mut file,
        )?;
        file.rewind()?;
        Ok((file, length))
    };
    let (file, length) = spool().map_err(ReadError::of_system(name))?;
    ReadError::check_length(name, length, max)?;
    Ok(file)
}

/// A file's content as text; `file` is for messages.
///
/// # Errors
/// The first byte that is not UTF-8, with its place.
pub fn decode_text(bytes: Vec<u8>, file: &Path) -> Result<String, Faults> {
    reader::decode_text(&bytes, file)?;
    // The bytes were just found to be UTF-8.
    Ok(String::from_utf8(bytes).unwrap_or_default())
}

/// A file that will be written: whole when [`Draft::replace`] or [`Draft::persist`] is called, or
/// not at all.
#[derive(Debug)]
pub struct Draft(Target);

#[derive(Debug)]
enum Target {
    /// A regular file, and the temporary file that will replace it.
    Beside(PathBuf, tempfile::NamedTempFile),
    /// A character device or a pipe, where nothing can be lost: /dev/null, /dev/stderr.
    Stream(File),
}

impl Draft {
    /// Makes a draft beside the file, whose directory must exist. An existing file keeps its
    /// permissions, and a symbolic link stays. A new file has the permissions `mode` less the
    /// umask.
    ///
    /// # Errors
    /// A directory, a disk or a socket is there, or the directory cannot be written to.
    pub fn new(file: &Path, mode: u32) -> io::Result<Self> {
        let is_link = || fs::symlink_metadata(file).is_ok_and(|found| found.is_symlink());
        let (file, permissions) = match fs::metadata(file) {
            Ok(there) => match not_regular(there.file_type()) {
                None => (fs::canonicalize(file)?, Some(there.permissions())),
                Some(_) if there.file_type().is_char_device() || there.file_type().is_fifo() => {
                    let stream = OpenOptions::new().write(true).open(file)?;
                    return Ok(Self(Target::Stream(stream)));
                }
                Some(found) => {
                    let message = format!("found {found}, expected a regular file");
                    return Err(io::Error::other(message));
                }
            },
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) if is_link() => {
                let message = "found a symbolic link that leads nowhere, expected a regular file";
                return Err(io::Error::other(message));
            }
            Err(_) => (file.to_owned(), None),
        };
        let beside = file_beside(&file, mode)?;
        if let Some(permissions) = permissions {
            // The umask applies to new files only.
            beside.as_file().set_permissions(permissions)?;
        }
        Ok(Self(Target::Beside(file, beside)))
    }

    /// Replaces the file by these bytes, after they are on disk.
    ///
    /// # Errors
    /// For example, the disk is full; the file is unchanged.
    pub fn replace(mut self, bytes: &[u8]) -> io::Result<()> {
        self.append_bytes(bytes)?;
        self.persist()
    }

    /// Appends to the draft.
    ///
    /// # Errors
    /// As [`Draft::replace`].
    pub fn append_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            Target::Stream(stream) => stream.write_all(bytes),
            Target::Beside(_, beside) => beside.write_all(bytes),
        }
    }

    /// Replaces the file by the draft, after it is on disk.
    ///
    /// # Errors
    /// As [`Draft::replace`].
    pub fn persist(self) -> io::Result<()> {
        match self.0 {
            Target::Stream(mut stream) => stream.flush(),
            Target::Beside(file, beside) => {
                beside.as_file().sync_all()?;
                beside.persist(&file)?;
                sync_directory(&file)
            }
        }
    }
}

/// Writes a new file whole or not at all, with a mode; what is there stays.
///
/// # Errors
/// Something of that name exists; else as [`Draft`].
pub fn create_new(file: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    let mut beside = file_beside(file, mode)?;
    beside.write_all(bytes)?;
    beside.as_file().sync_all()?;
    beside.persist_noclobber(file)?;
    sync_directory(file)
}

/// Writes a file whole or not at all; readable by all, as far as the umask allows.
///
/// # Errors
/// As [`Draft`].
pub fn replace_file(file: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    Draft::new(file, 0o666)?.replace(bytes.as_ref())
}

fn file_beside(file: &Path, mode: u32) -> io::Result<tempfile::NamedTempFile> {
    tempfile::Builder::new()
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(parent_directory(file))
}

fn sync_directory(file: &Path) -> io::Result<()> {
    File::open(parent_directory(file))?.sync_all()
}

fn parent_directory(file: &Path) -> &Path {
    file.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// The kind of a file that is not regular.
fn not_regular(kind: FileType) -> Option<&'static str> {
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_fifo() {
        Some("a pipe")
    } else if kind.is_char_device() {
        Some("a character device")
    } else if kind.is_block_device() {
        Some("a block device")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a special file")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]
    use super::*;

    #[test]
    fn only_regular_files_within_the_bound_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let said = |max| read_bytes(&path, max).unwrap_err().to_string();
        assert!(read_bytes(&path, 9).unwrap_err().is_absent());
        fs::write(&path, "123456789").unwrap();
        assert_eq!(read_bytes(&path, 9).unwrap(), b"123456789");
        assert!(said(8).ends_with("found more than 8 bytes, expected at most that"));
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(said(9).ends_with("found a pipe, expected a regular file"));
        for (file, what) in [("/dev/zero", "a character device"), ("/", "a directory")] {
            let error = read_bytes(Path::new(file), 9).unwrap_err();
            let expected = format!("cannot read {file}: found {what}, expected a regular file");
            assert_eq!(error.to_string(), expected);
            assert!(!error.is_absent());
        }
        // Its metadata has length 0.
        assert!(
            !read_bytes(Path::new("/proc/self/status"), 1 << 16)
                .unwrap()
                .is_empty()
        );
        assert!(matches!(
            read_bytes(Path::new("/proc/self/status"), 8),
            Err(ReadError::Size { max: 8, .. })
        ));
    }

    #[test]
    fn the_first_byte_that_is_not_text_has_its_place() {
        let error = decode_text(b"a = 1\n\xc2\xb5s\xff".to_vec(), Path::new("f")).unwrap_err();
        let expected = "f:2:3: found the byte 0xff, expected UTF-8 text";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o777;
        Draft::new(&at("private"), 0o600)
            .unwrap()
            .replace(b"first")
            .unwrap();
        assert_eq!(mode("private"), 0o600);
        std::os::unix::fs::symlink("private", at("link")).unwrap();
        replace_file(&at("link"), "second").unwrap();
        assert_eq!(fs::read(at("private")).unwrap(), b"second");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(mode("private"), 0o600);
        // An abandoned draft leaves nothing.
        drop(Draft::new(&at("private"), 0o600).unwrap());
        drop(Draft::new(&at("absent"), 0o600).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        assert_eq!(fs::read(at("private")).unwrap(), b"second");
    }

    #[test]
    fn what_is_no_regular_file_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let said = || replace_file(&path, "text").unwrap_err().to_string();
        fs::create_dir(&path).unwrap();
        assert_eq!(said(), "found a directory, expected a regular file");
        fs::remove_dir(&path).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(said(), "found a socket, expected a regular file");
        drop(socket);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/no/such/file", &path).unwrap();
        assert!(said().starts_with("found a symbolic link that leads nowhere"));
        fs::remove_file(&path).unwrap();
        // Streams have nothing to lose.
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        replace_file(&path, "text").unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        assert!(said().contains("No space left"));
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = std::thread::spawn({
            let path = path.clone();
            move || fs::read(path).unwrap()
        });
        replace_file(&path, "text").unwrap();
        assert_eq!(reader.join().unwrap(), b"text");
    }
}
