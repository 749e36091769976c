//! Unpacks a kernel's package into the cache.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use thalweg_process::Process;
use thalweg_process::interrupt::{self, OnSignal};
use thalweg_process::tool;

use super::{CONFIGURATION, IMAGE, PACKAGE, Package, image, kernels_directory, modules_in};
use crate::cache::Scratch;
use crate::error::Error;

/// Time limit of a download by apt.
const LIMIT: Duration = Duration::from_secs(1800);
/// Architecture of the packages.
const ARCHITECTURE: &str = "amd64";
/// Name prefixes of packages that hold a kernel, or depend on one that does. Debian 14 has the image in
/// `linux-binary-*`, on which `linux-image-*` depends.
const KERNELS: [&str; 2] = ["linux-image-", "linux-binary-"];
/// A meta package depends on `linux-image-*`, that on `linux-binary-*`.
const DEPTH: usize = 3;
/// Name prefixes of the packages, named by the release, that hold `lib/modules/RELEASE` and a file of it where the
/// package of the image does not: Ubuntu's since 18.04, Debian's since 14.
const PARTS: [(&str, &str); 2] = [("linux-modules-", ""), ("linux-base-", "modules.builtin")];
/// Where modules are in packages of Debian since 13.
const MERGED: &str = "usr/lib/modules";
/// Files beside the modules since Debian 14, and the begin of their names in `boot`.
const BESIDE: [(&str, &str); 2] = [("vmlinuz", IMAGE), ("config", CONFIGURATION)];

/// The result of [`add_kernel`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// The kernel's release.
    pub name: String,
    /// Package of the kernel.
    pub package: Package,
    /// Whether the same version was there already.
    pub was_there: bool,
}

/// Adds the kernel of a package: a file that ends in `.deb`, or a package that apt downloads and
/// whose signatures it checks. A meta package stands for the one that it depends on. Packages on which a
/// file depends are looked for beside it.
///
/// # Errors
/// One line: [`Error::Preconditions`] if a program is missing; else the fault of the package.
/// Nothing is left behind.
pub fn add_kernel(package: &str) -> Result<Added, Error> {
    let is_file = package.ends_with(".deb");
    let needed = [("dpkg-deb", "dpkg"), ("depmod", "kmod"), ("apt-get", "apt")];
    let missing: Vec<String> = needed
        .into_iter()
        .filter(|(program, _)| !(is_file && *program == "apt-get"))
        .filter(|(program, _)| tool::find_program(program).is_none())
        .map(|(program, package)| format!("no {program}: install the package {package}"))
        .collect();
    if !missing.is_empty() {
        return Err(Error::Preconditions(missing));
    }
    if !is_file && !is_name(package) {
        return Err(Error::Options(format!(
            "expected the name of a package, as {}, or a file .deb, found {package:?}",
            super::EXAMPLE
        )));
    }
    let _signals = interrupt::Guard::install_handlers()?;
    let scratch = Scratch::create(&kernels_directory())?;
    let unpacked = scratch.path().join("tree");
    let source = match is_file {
        true => Source::Beside(
            fs::canonicalize(package)
                .map_err(|error| Error::Options(format!("cannot read {package}: {error}")))?,
        ),
        false => Source::Apt(&scratch),
    };
    let archive = match &source {
        Source::Beside(file) => file.clone(),
        Source::Apt(scratch) => download_package(scratch, package)?,
    };
    let mut chain = vec![unpack_package(package, &archive, &unpacked)?];
    let name = loop {
        let control = &chain[chain.len() - 1];
        match only_release(&unpacked)? {
            Some(name) => break name,
            None if chain.len() > DEPTH => {
                return Err(Error::Options(format!(
                    "{package}: {} holds no kernel ({IMAGE}*)",
                    control.package.name
                )));
            }
            None => {
                let depends = kernel_package(control, package)?;
                let archive = source.fetch_package(&depends, control)?;
                chain.push(unpack_package(&depends, &archive, &unpacked)?);
            }
        }
    };
    for (prefix, file) in PARTS {
        if modules_in(&unpacked, &name).join(file).exists() {
            continue;
        }
        let holder = &chain[chain.len() - 1];
        let part = format!("{prefix}{name}");
        if !chain
            .iter()
            .any(|control| control.dependency_names().any(|it| it == part))
        {
            return Err(Error::Options(format!(
                "{} is no whole kernel, and depends on no {part}: expected linux-image-{name}",
                holder.package.name,
            )));
        }
        let archive = source.fetch_package(&part, holder)?;
        unpack_package(&part, &archive, &unpacked)?;
    }
    // The last of the kernel's own name: `linux-binary-*` is only a part of it.
    let of_image = chain
        .iter()
        .rposition(|it| it.package.name.starts_with(KERNELS[0]));
    let control = chain.swap_remove(of_image.unwrap_or(chain.len() - 1));
    let mut depmod = tool::program_command("depmod");
    depmod.arg("-b").arg(&unpacked).arg(&name);
    run_attended(&mut depmod)?
        .map_err(|why| Error::Options(format!("depmod refuses the modules of {package}: {why}")))?;
    // Documentation and the like.
    let _ = fs::remove_dir_all(unpacked.join("usr"));
    let file = unpacked.join(PACKAGE);
    let text = serde_json::to_vec(&control.package)
        .map_err(|error| Error::io("cannot write", &file)(error.into()))?;
    fs::write(&file, text).map_err(Error::io("cannot write", &file))?;
    move_into_cache(&scratch, &unpacked, name, control.package)
}

/// Moves an unpacked kernel into place, at once, so that nobody finds half of it.
fn move_into_cache(
    scratch: &Scratch,
    unpacked: &Path,
    name: String,
    package: Package,
) -> Result<Added, Error> {
    let place = kernels_directory().join(&name);
    let version =
        || -> Option<Package> { serde_json::from_slice(&fs::read(place.join(PACKAGE)).ok()?).ok() };
    let added = |was_there| Added {
        name: name.clone(),
        package: package.clone(),
        was_there,
    };
    if version().as_ref() == Some(&package) {
        return Ok(added(true));
    }
    // An older version of the same release, if there is one.
    let _ = fs::rename(&place, scratch.path().join("replaced"));
    match fs::rename(unpacked, &place) {
        // Another process was faster.
        Err(_) if version().is_some() => Ok(added(true)),
        done => done
            .map(|()| added(false))
            .map_err(Error::io("cannot create", &place)),
    }
}

/// Where further packages come from.
enum Source<'a> {
    /// The directory of this file.
    Beside(PathBuf),
    /// Apt, into this directory.
    Apt(&'a Scratch),
}

impl Source<'_> {
    /// The file of a package on which another depends.
    fn fetch_package(&self, package: &str, needed_by: &Control) -> Result<PathBuf, Error> {
        let file = match self {
            Self::Apt(scratch) => return download_package(scratch, package),
            Self::Beside(file) => file,
        };
        let directory = file.parent().unwrap_or(Path::new("/"));
        let entries = fs::read_dir(directory).map_err(Error::io("cannot read", directory))?;
        let begin = format!("{package}_{}_", needed_by.package.version);
        let is_it = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // Epochs are not in names of files, and colons may be escaped.
            name.starts_with(&begin) && name.ends_with(".deb")
        };
        let found = entries.flatten().map(|entry| entry.path()).find(is_it);
        found.ok_or_else(|| {
            let name = match package.starts_with(KERNELS[0]) {
                true => "that package".to_owned(),
                false => format!("{} without a file", needed_by.package.name),
            };
            Error::Options(format!(
                "{} depends on {package}: name {name}, or put its file ({begin}*.deb) into {}",
                needed_by.package.name,
                directory.display()
            ))
        })
    }
}

/// Fields of a package's control file.
struct Control {
    package: Package,
    depends: String,
}

impl Control {
    /// The names of packages on which it depends.
    fn dependency_names(&self) -> impl Iterator<Item = &str> {
        self.depends
            .split([',', '|'])
            .filter_map(|dependency| dependency.split_ascii_whitespace().next())
            .filter(|name| is_name(name))
    }
}

/// Unpacks a package into a directory, over what is there.
fn unpack_package(package: &str, archive: &Path, into: &Path) -> Result<Control, Error> {
    let wrong = |why: String| Error::Options(format!("cannot unpack {package}: {why}"));
    let field = |name: &str| {
        let mut command = tool::program_command("dpkg-deb");
        command.arg("--field").arg(archive).arg(name);
        run_attended(&mut command)?.map_err(&wrong)
    };
    let control = Control {
        package: Package {
            name: field("Package")?,
            version: field("Version")?,
        },
        depends: field("Depends")?,
    };
    let architecture = field("Architecture")?;
    if architecture != ARCHITECTURE {
        return Err(wrong(format!(
            "it is for {architecture}, expected {ARCHITECTURE}"
        )));
    }
    if !control.package.name.starts_with("linux-") {
        return Err(wrong(format!(
            "it is {}, expected a package of a kernel (linux-image-*)",
            control.package.name
        )));
    }
    let mut command = tool::program_command("dpkg-deb");
    command.arg("--extract").arg(archive).arg(into);
    run_attended(&mut command)?.map_err(wrong)?;
    // A package may restrict its directories; the cache belongs to its user.
    let _ = fs::set_permissions(into, std::os::unix::fs::PermissionsExt::from_mode(0o755));
    arrange_tree(into)?;
    Ok(control)
}

/// Moves what is elsewhere in newer packages to where depmod and [`super::in_root`] expect it.
fn arrange_tree(tree: &Path) -> Result<(), Error> {
    let entries = |directory: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let make = |directory: &Path| {
        fs::create_dir_all(directory).map_err(Error::io("cannot create", directory))
    };
    for from in entries(&tree.join(MERGED)) {
        let Some(release) = from.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let (modules, boot) = (modules_in(tree, release), tree.join("boot"));
        for file in entries(&from) {
            let name = file.file_name().unwrap_or_default();
            let (directory, to) = match BESIDE.iter().find(|(beside, _)| *beside == name) {
                Some((_, begin)) => (&boot, boot.join(format!("{begin}{release}"))),
                None => (&modules, modules.join(name)),
            };
            make(directory)?;
            fs::rename(&file, &to).map_err(Error::io("cannot create", &to))?;
        }
    }
    Ok(())
}

/// Has apt download a package into a new directory, and returns the file.
fn download_package(scratch: &Scratch, package: &str) -> Result<PathBuf, Error> {
    let directory = scratch.path().join(package);
    fs::create_dir(&directory).map_err(Error::io("cannot create", &directory))?;
    let mut command = tool::program_command("apt-get");
    command
        .args(["--quiet=2", "download", package])
        .env("LC_ALL", "C")
        .current_dir(&directory);
    run_attended(&mut command)?.map_err(|why| {
        let remedy = match why.contains("Unable to locate") {
            true => " (apt-get update as root may help; apt-cache search linux-image)",
            false => "",
        };
        Error::Options(format!("apt-get cannot download {package}: {why}{remedy}"))
    })?;
    let mut files = fs::read_dir(&directory).map_err(Error::io("cannot read", &directory))?;
    match files.next() {
        Some(Ok(file)) => Ok(file.path()),
        _ => Err(Error::Options(format!(
            "apt-get has downloaded nothing for {package}"
        ))),
    }
}

/// The release of the only kernel in a directory.
fn only_release(unpacked: &Path) -> Result<Option<String>, Error> {
    let names = fs::read_dir(unpacked.join("boot"))
        .into_iter()
        .flatten()
        .flatten();
    let mut images = names.map(|entry| entry.path()).filter(|path| {
        path.file_name()
            .is_some_and(|it| it.to_string_lossy().starts_with(IMAGE))
    });
    let Some(file) = images.next() else {
        return Ok(None);
    };
    let release = image::image_release(&file).map_err(Error::Options)?;
    let named = file.file_name().map(|it| it.to_string_lossy().into_owned());
    if named.as_deref() != Some(&format!("{IMAGE}{release}")) {
        return Err(Error::Options(format!(
            "{} says that it is {release}: expected its name to say so, too",
            file.display()
        )));
    }
    Ok(Some(release))
}

/// The only package of a kernel that another depends on.
fn kernel_package(control: &Control, asked: &str) -> Result<String, Error> {
    let is_kernel = |name: &&str| KERNELS.iter().any(|kind| name.starts_with(kind));
    let mut names: Vec<&str> = control.dependency_names().filter(is_kernel).collect();
    names.dedup();
    match names.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => Err(Error::Options(format!(
            "{asked} holds no kernel ({IMAGE}* and its modules) and depends on none: expected \
             a package such as {}",
            super::EXAMPLE
        ))),
        several => Err(Error::Options(format!(
            "{asked} depends on several packages of kernels: name one of {}",
            several.join(", ")
        ))),
    }
}

/// Whether a text is a valid package name (Debian Policy 5.6.1), and no option.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.bytes().next().is_some_and(plain)
        && text
            .bytes()
            .all(|byte| plain(byte) || b"+-.".contains(&byte))
}

/// Runs a command to its end; SIGINT and SIGTERM end it, too. Returns its output, or the message of
/// its failure. Both are kept in memory, as the disk may be full.
fn run_attended(command: &mut Command) -> Result<Result<String, String>, Error> {
    let create = || -> Result<(File, File), Error> {
        memfd_create(c"thalweg-output", MFdFlags::MFD_CLOEXEC)
            .map_err(std::io::Error::from)
            .and_then(|file| Ok((File::from(file.try_clone()?), File::from(file))))
            .map_err(Error::system("cannot create a file in memory"))
    };
    let (output, said) = create()?;
    let (errors, complaints) = create()?;
    let mut process = Process::spawn(command.stdin(Stdio::null()).stdout(output).stderr(errors))?;
    let status = process.wait_until(Instant::now() + LIMIT, OnSignal::Fail)?;
    let read = |mut file: File| {
        let mut bytes = Vec::new();
        let done = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
        done.map_err(Error::system("cannot read what a program said"))?;
        Ok::<_, Error>(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    Ok(match status {
        Some(status) if status.success() => Ok(read(said)?),
        Some(status) => {
            Err(decisive_line(&read(complaints)?).unwrap_or_else(|| status.to_string()))
        }
        None => Err(format!("no end after {} s", LIMIT.as_secs())),
    })
}

/// The decisive line of a program's error output.
fn decisive_line(complaints: &str) -> Option<String> {
    let lines = || {
        complaints
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
    };
    // The first failure is the cause; its callers only report that it failed.
    let full = |line: &&str| line.contains("No space left on device");
    let fault = |line: &&str| line.starts_with("E: ") || line.contains("error: ");
    let known = lines().find(full).or_else(|| lines().find(fault));
    let line = known.or_else(|| lines().next())?;
    Some(
        line.trim_start_matches("E: ")
            .chars()
            .filter(|c| !c.is_control())
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(depends: &str) -> Control {
        Control {
            package: Package {
                name: "linux-image-amd64".to_owned(),
                version: "1".to_owned(),
            },
            depends: depends.to_owned(),
        }
    }

    #[test]
    fn a_meta_package_leads_to_one_kernel() {
        let part = |depends: &str| kernel_package(&control(depends), "meta");
        let one = part("linux-base, linux-image-6.1.0-56-amd64 (= 6.1.192-2)").unwrap();
        assert_eq!(one, "linux-image-6.1.0-56-amd64");
        let split = part(
            "linux-base-7.2.13-amd64 (= 1), linux-binary-7.2.13-amd64 (= 1), linux-modules-7.2.13-amd64",
        );
        assert_eq!(split.unwrap(), "linux-binary-7.2.13-amd64");
        for (depends, words) in [
            ("linux-base", "depends on none"),
            (
                "linux-image-a | linux-image-b",
                "name one of linux-image-a, linux-image-b",
            ),
        ] {
            let why = part(depends).unwrap_err().to_string();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn names_of_packages_are_no_options() {
        assert!(is_name("linux-image-6.12.117+deb12-cloud-amd64"));
        for text in ["", "-o", "--allow", "a b", "a/b", "A", "a=1", "ä"] {
            assert!(!is_name(text), "{text}");
        }
    }

    #[test]
    fn the_fault_among_complaints() {
        let text = "W: Download is performed unsandboxed\nE: Unable to locate package x\n";
        assert_eq!(decisive_line(text).unwrap(), "Unable to locate package x");
        assert_eq!(decisive_line("\n"), None);
        let text = "tar: a: Cannot write: No space left on device\ndpkg-deb: error: tar failed\n";
        assert!(
            decisive_line(text)
                .unwrap()
                .ends_with("No space left on device")
        );
        let text = "dpkg-deb: error: 'x' is not a Debian format archive";
        assert_eq!(decisive_line(text).unwrap(), text);
    }
}
