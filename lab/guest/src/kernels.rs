//! Stock kernels of distributions for [`crate::qemu`]: those of this machine, and packages unpacked
//! into the cache. Nothing is installed.

mod add;
mod image;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cache::{self, Scratch};
use crate::error::Error;
use crate::modules;
pub use add::{Added, add_kernel};

/// Begin of a kernel image's name in `boot`; the release follows.
const IMAGE: &str = "vmlinuz-";
/// Begin of its configuration's name there.
const CONFIGURATION: &str = "config-";
/// The file that names the unpacked package.
const PACKAGE: &str = "package.json";
/// Oldest kernel that attaches `struct_ops` by links, as `thalweg cc load` does.
const STRUCT_OPS_LINKS: (u32, u32) = (6, 4);

/// The package of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Package {
    /// Such as `linux-image-6.12.117+deb12-cloud-amd64`.
    pub name: String,
    /// Such as `6.12.117-1~deb12u1`.
    pub version: String,
}

/// An available kernel.
#[derive(Debug, Clone, Serialize)]
pub struct Stock {
    /// Release of the kernel, as in `uname -r`.
    pub name: String,
    /// The unpacked package; none for this machine's kernel or a named file.
    pub package: Option<Package>,
    /// The image, a bzImage.
    pub image: PathBuf,
    /// The directory with its modules and `modules.dep`.
    pub modules: PathBuf,
    /// Whether it has BTF; none if its configuration cannot be read.
    pub btf: Option<bool>,
    /// Whether it takes congestion controls in BPF; none as above.
    pub struct_ops: Option<bool>,
    /// For each network module that jobs use, whether the kernel has it, as module or built in.
    pub has: BTreeMap<&'static str, bool>,
    /// Why it cannot be used, and the remedy; none if it can.
    pub fault: Option<String>,
}

impl Stock {
    /// Package or other origin of the kernel, in words.
    pub fn origin_description(&self) -> String {
        match &self.package {
            Some(package) => format!("{} {}", package.name, package.version),
            None => self.name.clone(),
        }
    }

    /// The network modules that it lacks.
    pub fn missing_modules(&self) -> Vec<&'static str> {
        let absent = self.has.iter().filter(|(_, has)| !**has);
        absent.map(|(name, _)| *name).collect()
    }

    pub(crate) fn new(
        name: &str,
        package: Option<Package>,
        image: PathBuf,
        modules: PathBuf,
        configuration: Option<&Path>,
    ) -> Self {
        let text = configuration.and_then(|file| fs::read_to_string(file).ok());
        let on = |text: &String, key: &str| text.lines().any(|line| line == format!("{key}=y"));
        let btf = text.as_ref().map(|text| on(text, "CONFIG_DEBUG_INFO_BTF"));
        let struct_ops = text.as_ref().map(|text| {
            on(text, "CONFIG_DEBUG_INFO_BTF")
                && on(text, "CONFIG_BPF_JIT")
                && release_numbers(name) >= STRUCT_OPS_LINKS
        });
        let known = modules::Tree::read(&modules).ok();
        let has = |module: &str| known.as_ref().is_some_and(|tree| tree.has_module(module));
        let fault = image::image_release(&image)
            .err()
            .or_else(|| match known.is_some() {
                true => None,
                false => Some(format!(
                    "no {}",
                    modules.join(modules::DEPENDENCIES).display()
                )),
            });
        Self {
            has: modules::ALWAYS.map(|module| (module, has(module))).into(),
            name: name.to_owned(),
            package,
            image,
            modules,
            btf,
            struct_ops,
            fault,
        }
    }
}

/// The first two numbers of a release.
fn release_numbers(release: &str) -> (u32, u32) {
    let mut parts = release
        .split(['.', '-', '+'])
        .map_while(|part| part.parse().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// All available kernels, the newest last. A package hides this machine's kernel of the same name.
///
/// # Errors
/// Reading the cache fails; a missing cache is no error.
pub fn list_kernels() -> Result<Vec<Stock>, Error> {
    list_in(&kernels_directory(), Path::new("/"))
}

fn list_in(cache: &Path, machine: &Path) -> Result<Vec<Stock>, Error> {
    let mut all: Vec<Stock> = cached_kernels(cache)?;
    let of_packages: BTreeSet<String> = all.iter().map(|stock| stock.name.clone()).collect();
    let own = in_root(machine, None);
    all.extend(
        own.into_iter()
            .filter(|stock| !of_packages.contains(&stock.name)),
    );
    all.sort_by(|one, other| by_release(&one.name, &other.name));
    Ok(all)
}

fn cached_kernels(cache: &Path) -> Result<Vec<Stock>, Error> {
    let entries = match fs::read_dir(cache) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("cannot read", cache)(error)),
    };
    let roots = entries.flatten().map(|entry| entry.path());
    Ok(roots
        .filter_map(|root| {
            let text = fs::read(root.join(PACKAGE)).ok()?;
            let package = serde_json::from_slice(&text).ok()?;
            in_root(&root, Some(package)).into_iter().next()
        })
        .collect())
}

/// The kernels in `boot` of a root directory, with their modules.
fn in_root(root: &Path, package: Option<Package>) -> Vec<Stock> {
    let boot = root.join("boot");
    let names = fs::read_dir(&boot).into_iter().flatten().flatten();
    names
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let release = name.strip_prefix(IMAGE)?.to_owned();
            Some(Stock::new(
                &release,
                package.clone(),
                entry.path(),
                modules_in(root, &release),
                Some(&boot.join(format!("{CONFIGURATION}{release}"))),
            ))
        })
        .collect()
}

fn modules_in(root: &Path, release: &str) -> PathBuf {
    root.join("lib/modules").join(release)
}

/// The kernel of this name or file, or the newest usable one.
///
/// # Errors
/// [`Error::Preconditions`] if there is none of that name or it cannot be used, with the remedy.
pub fn find_kernel(asked: Option<&OsStr>) -> Result<Stock, Error> {
    let wrong = |line: String| Error::Preconditions(vec![line]);
    let all = list_kernels()?;
    let Some(asked) = asked else {
        return all
            .into_iter()
            .rfind(|stock| stock.fault.is_none())
            .ok_or_else(|| {
                wrong(format!(
                    "no kernel: add a package, as `thalweg-lab kernels add {EXAMPLE}`"
                ))
            });
    };
    let named = all.iter().rfind(|stock| OsStr::new(&stock.name) == asked);
    let stock = match named {
        Some(stock) => stock.clone(),
        None if asked.to_string_lossy().contains('/') => {
            of_file(Path::new(asked)).map_err(wrong)?
        }
        None => {
            let names: Vec<&str> = all.iter().map(|stock| stock.name.as_str()).collect();
            return Err(wrong(format!(
                "no kernel {asked:?}: expected a file with a `/`, or one of `thalweg-lab kernels \
                 list` ({})",
                if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                }
            )));
        }
    };
    match &stock.fault {
        None => Ok(stock),
        Some(fault) => Err(wrong(format!(
            "the kernel {} cannot be used: {fault}",
            stock.name
        ))),
    }
}

/// The package that messages name as an example.
const EXAMPLE: &str = "linux-image-6.12-cloud-amd64";

/// A kernel given by its image. Its modules are beside it as in a package, or this machine's of its
/// release.
fn of_file(image: &Path) -> Result<Stock, String> {
    let image = fs::canonicalize(image)
        .map_err(|error| format!("cannot read the kernel {}: {error}", image.display()))?;
    let release = image::image_release(&image)?;
    let boot = image.parent().unwrap_or(Path::new("/"));
    let roots = [boot.parent().unwrap_or(Path::new("/")), Path::new("/")];
    let modules = roots
        .map(|root| modules_in(root, &release))
        .into_iter()
        .find(|directory| directory.join(modules::DEPENDENCIES).is_file())
        .ok_or_else(|| {
            format!(
                "{} is Linux {release}, whose modules are neither in {} nor in {}",
                image.display(),
                modules_in(roots[0], &release).display(),
                modules_in(roots[1], &release).display()
            )
        })?;
    let configuration = boot.join(format!("{CONFIGURATION}{release}"));
    Ok(Stock::new(
        &release,
        None,
        image,
        modules,
        Some(&configuration),
    ))
}

/// Removes a kernel from the cache.
///
/// # Errors
/// [`Error::Options`] if the cache has none of that name.
pub fn remove_kernel(name: &str) -> Result<(), Error> {
    let cache = kernels_directory();
    if !cached_kernels(&cache)?
        .iter()
        .any(|stock| stock.name == name)
    {
        let of_machine = in_root(Path::new("/"), None);
        let why = match of_machine.iter().any(|stock| stock.name == name) {
            true => "it is this machine's own",
            false => "there is none of that name (thalweg-lab kernels list)",
        };
        return Err(Error::Options(format!(
            "cannot remove the kernel {name:?}: {why}"
        )));
    }
    let scratch = Scratch::create(&cache)?;
    let from = cache.join(name);
    // Renamed at once, so that nobody finds half a kernel.
    fs::rename(&from, scratch.path().join("removed")).map_err(Error::io("cannot remove", &from))
}

/// The directory of unpacked kernels, with one below it for each release.
fn kernels_directory() -> PathBuf {
    cache::cache_directory().join("kernels")
}

/// Compares releases; numbers in them compare as numbers.
fn by_release(one: &str, other: &str) -> Ordering {
    let parts = |text: &str| -> Vec<(u64, String)> {
        text.split_inclusive(|c: char| !c.is_ascii_digit())
            .map(|part| {
                let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
                (digits.parse().unwrap_or(0), part[digits.len()..].to_owned())
            })
            .collect()
    };
    parts(one).cmp(&parts(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        let ordered = [
            "5.15.0-9-generic",
            "6.1.0-9-cloud-amd64",
            "6.1.0-56-cloud-amd64",
            "6.12.9+deb12-amd64",
            "6.12.117+deb12-amd64",
        ];
        for pair in ordered.windows(2) {
            assert_eq!(by_release(pair[0], pair[1]), Ordering::Less, "{pair:?}");
        }
        assert_eq!(by_release(ordered[0], ordered[0]), Ordering::Equal);
        assert!(release_numbers("6.12.117+deb12-amd64") > STRUCT_OPS_LINKS);
        assert!(release_numbers("6.1.0-56") < STRUCT_OPS_LINKS);
    }

    #[test]
    fn kernels_are_found_with_what_they_have() {
        let root = tempfile::tempdir().unwrap();
        let boot = root.path().join("boot");
        fs::create_dir(&boot).unwrap();
        fs::write(
            boot.join("vmlinuz-6.12.1"),
            image::tests::example_image("6.12.1"),
        )
        .unwrap();
        let configuration = "CONFIG_DEBUG_INFO_BTF=y\nCONFIG_BPF_JIT=y\n";
        fs::write(boot.join("config-6.12.1"), configuration).unwrap();
        fs::write(boot.join("vmlinuz-6.1.1"), "no kernel").unwrap();
        let modules = modules_in(root.path(), "6.12.1");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "kernel/sch_tbf.ko.xz:\n").unwrap();
        fs::write(modules.join("modules.builtin"), "kernel/net/veth.ko\n").unwrap();
        let all = list_in(&root.path().join("absent"), root.path()).unwrap();
        let [old, new] = all.as_slice() else {
            panic!("{all:?}");
        };
        assert!(old.fault.as_ref().unwrap().contains("is no Linux kernel"));
        assert_eq!((old.btf, old.struct_ops), (None, None));
        assert_eq!((new.btf, new.struct_ops), (Some(true), Some(true)));
        assert_eq!(new.fault, None);
        assert!(new.has["veth"] && new.has["sch_tbf"] && !new.has["sch_red"]);
        assert!(new.missing_modules().contains(&"sch_red"));
    }
}
