//! Archives that a kernel unpacks as its first file system
//! (Documentation/driver-api/early-userspace/buffer-format.rst, "newc").

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const DIRECTORY: u32 = 0o040_755;
const DEVICE: u32 = 0o020_600;
const FILE: u32 = 0o100_000;
/// The name that ends an archive.
const END: &str = "TRAILER!!!";

/// An archive that is being written. All files are root's, and have time 0.
#[derive(Debug)]
pub struct Archive<W> {
    output: W,
    written: u64,
    serial: u32,
    directories: BTreeSet<PathBuf>,
}

impl<W: Write> Archive<W> {
    /// Begins an empty archive.
    pub fn new(output: W) -> Self {
        Self {
            output,
            written: 0,
            serial: 0,
            directories: BTreeSet::new(),
        }
    }

    /// Adds a directory and its parents, unless they are there.
    ///
    /// # Errors
    /// Writing fails, here and below; or the path is not UTF-8.
    pub fn add_directory(&mut self, path: &Path) -> io::Result<()> {
        if path.parent().is_none() || !self.directories.insert(path.to_owned()) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.add_directory(parent)?;
        }
        self.write_entry(path, DIRECTORY, (0, 0), &[])
    }

    /// Adds a character device.
    ///
    /// # Errors
    /// As [`Archive::add_directory`].
    pub fn add_device(&mut self, path: &Path, number: (u32, u32)) -> io::Result<()> {
        self.add_parent(path)?;
        self.write_entry(path, DEVICE, number, &[])
    }

    /// Adds a regular file with these permissions.
    ///
    /// # Errors
    /// As [`Archive::add_directory`]; also a file of 4 GiB or more.
    pub fn add_file(&mut self, path: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
        self.add_parent(path)?;
        self.write_entry(path, FILE | mode, (0, 0), content)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// As [`Archive::add_directory`].
    pub fn finish_archive(mut self) -> io::Result<W> {
        self.write_entry(Path::new(END), 0, (0, 0), &[])?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn add_parent(&mut self, path: &Path) -> io::Result<()> {
        path.parent()
            .map_or(Ok(()), |parent| self.add_directory(parent))
    }

    fn write_entry(
        &mut self,
        path: &Path,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        self.serial += 1;
        let name = path.to_str().map(|name| name.trim_start_matches('/'));
        let name = name.ok_or(io::ErrorKind::InvalidFilename)?;
        let size = u32::try_from(content.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let fields = [
            self.serial,
            mode,
            // Owner and group.
            0,
            0,
            // Number of links, and time.
            1,
            0,
            size,
            // Device of the file.
            0,
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            // Checksum, which this format does not use.
            0,
        ];
        let header: String = fields.iter().map(|field| format!("{field:08X}")).collect();
        self.write(format!("070701{header}{name}\0").as_bytes())?;
        self.pad_to_four()?;
        self.write(content)?;
        self.pad_to_four()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.output.write_all(bytes)
    }

    /// Pads to four bytes.
    fn pad_to_four(&mut self) -> io::Result<()> {
        let odd = self.written.next_multiple_of(4) - self.written;
        self.write(&[0; 4][..odd as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_the_kernel_reads() {
        let mut archive = Archive::new(Vec::new());
        archive
            .add_file(Path::new("/a/b"), 0o755, b"hello")
            .unwrap();
        archive.add_file(Path::new("/a/c"), 0o644, b"").unwrap();
        archive
            .add_device(Path::new("/dev/console"), (5, 1))
            .unwrap();
        let bytes = archive.finish_archive().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes).unwrap();
        let entries: Vec<&str> = text.split("070701").skip(1).collect();
        let names: Vec<&str> = entries
            .iter()
            .map(|entry| entry[13 * 8..].split('\0').next().unwrap())
            .collect();
        // Each directory once, and before its content.
        assert_eq!(names, ["a", "a/b", "a/c", "dev", "dev/console", END]);
        let field = |entry: usize, field: usize| {
            u32::from_str_radix(&entries[entry][field * 8..field * 8 + 8], 16).unwrap()
        };
        assert_eq!((field(0, 1), field(1, 1)), (0o040_755, 0o100_755));
        assert_eq!((field(1, 6), field(1, 11)), (5, 4));
        assert_eq!((field(4, 9), field(4, 10)), (5, 1));
        assert!(entries[1].contains("hello\0"), "{text:?}");
    }
}
