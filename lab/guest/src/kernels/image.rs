//! The header of a kernel's image (Documentation/arch/x86/boot.rst).

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// "HdrS", and its offset.
const MAGIC: (usize, &[u8]) = (0x202, b"HdrS");
/// Offset of the version's place in the header, less [`VERSION_FROM`].
const VERSION: usize = 0x20e;
const VERSION_FROM: usize = 0x200;
/// The first sectors, which contain the version.
const HEAD_BYTES: u64 = 64 << 10;

/// The release of a bzImage, as in `uname -r`. A fault is one line with the remedy.
pub(super) fn image_release(image: &Path) -> Result<String, String> {
    let mut head = Vec::new();
    File::open(image)
        .and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head))
        .map_err(|error| {
            let name = image.display();
            let remedy = match error.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    " (chmod a+r as root, or a package by `thalweg-lab kernels add`)"
                }
                _ => "",
            };
            format!("cannot read the kernel {name}: {error}{remedy}")
        })?;
    parse_header(&head)
        .ok_or_else(|| format!("{} is no Linux kernel for x86 (bzImage)", image.display()))
}

fn parse_header(head: &[u8]) -> Option<String> {
    let (at, magic) = MAGIC;
    if head.get(at..at + magic.len())? != magic {
        return None;
    }
    let place = u16::from_le_bytes(head.get(VERSION..VERSION + 2)?.try_into().ok()?);
    let text = head.get(usize::from(place) + VERSION_FROM..)?;
    let word = text.split(|byte| *byte == 0 || *byte == b' ').next()?;
    let word = String::from_utf8(word.to_owned()).ok()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+~".contains(c);
    (!word.is_empty() && word.chars().all(plain)).then_some(word)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The begin of an image of this release.
    pub(crate) fn example_image(release: &str) -> Vec<u8> {
        let place = 0x100_u16.to_le_bytes();
        let mut head = [&[0; 0x202], &b"HdrS"[..], &[0; 8], &place, &[0; 0xf0]].concat();
        head.extend_from_slice(format!("{release} (builder@example) #1 SMP\0").as_bytes());
        head
    }

    #[test]
    fn the_release_is_in_the_header() {
        assert_eq!(
            parse_header(&example_image("6.12.117+deb12-cloud-amd64")).unwrap(),
            "6.12.117+deb12-cloud-amd64"
        );
        for wrong in [
            Vec::new(),
            vec![0; 0x400],
            example_image("")[..0x300].to_vec(),
            example_image(""),
            example_image("../../etc"),
            example_image("6.1")[..0x20f].to_vec(),
        ] {
            assert_eq!(parse_header(&wrong), None);
        }
    }
}
