//! The modules of a kernel (modules.dep(5)).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The file that lists the modules and their dependencies.
pub(crate) const DEPENDENCIES: &str = "modules.dep";
/// The file that lists the built-in modules.
const BUILT_IN: &str = "modules.builtin";
/// The file with the parameters of what is built in. It also names what can be no
/// module, as IPv6 in Linux 7.2, which [`BUILT_IN`] leaves out.
const BUILT_IN_PARAMETERS: &str = "modules.builtin.modinfo";
/// Endings of a module's file name.
const ENDINGS: [&str; 4] = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"];

/// Modules for the namespaces and queueing disciplines of a job.
pub(crate) const ALWAYS: [&str; 11] = [
    "ipv6",
    "veth",
    "sch_ingress",
    "cls_bpf",
    "sch_tbf",
    "sch_netem",
    "sch_red",
    "sch_fq",
    "tcp_bbr",
    "tcp_dctcp",
    "tcp_htcp",
];

/// The modules below one directory.
#[derive(Debug)]
pub(crate) struct Tree {
    directory: PathBuf,
    /// File and dependencies of each module, by its name.
    modules: BTreeMap<String, (String, Vec<String>)>,
    built_in: BTreeSet<String>,
    /// Parts of the kernel that can be no modules and have parameters.
    parts: BTreeSet<String>,
}

impl Tree {
    /// Reads the lists of a directory such as `/lib/modules/6.1.0`.
    pub(crate) fn read(directory: &Path) -> Result<Self, Error> {
        let read = |name: &str| {
            let file = directory.join(name);
            fs::read_to_string(&file).map_err(Error::io("cannot read", file))
        };
        // Kernels before 5.2 do not have it.
        let parameters = fs::read(directory.join(BUILT_IN_PARAMETERS)).unwrap_or_default();
        Ok(Self::parse_lists(
            directory,
            &read(DEPENDENCIES)?,
            &read(BUILT_IN)?,
            &String::from_utf8_lossy(&parameters),
        ))
    }

    fn parse_lists(directory: &Path, dependencies: &str, built_in: &str, parameters: &str) -> Self {
        let needs = |words: &str| words.split_ascii_whitespace().map(str::to_owned).collect();
        let lines = dependencies.lines().filter_map(|line| line.split_once(':'));
        Self {
            directory: directory.to_owned(),
            modules: lines
                .map(|(file, rest)| (module_name(file), (file.to_owned(), needs(rest))))
                .collect(),
            built_in: built_in.lines().map(module_name).collect(),
            parts: parameters
                .split('\0')
                .filter_map(|row| row.split_once('.'))
                .map(|(name, _)| module_name(name))
                .collect(),
        }
    }

    /// Whether the kernel has a module, loadable or built in.
    pub(crate) fn has_module(&self, name: &str) -> bool {
        // Reno is part of TCP and has no file.
        name == "tcp_reno"
            || self.modules.contains_key(name)
            || self.built_in.contains(name)
            || self.parts.contains(name)
    }

    /// The names with a prefix, without it.
    pub(crate) fn names_with_prefix(&self, prefix: &str) -> Vec<&str> {
        let all = self.modules.keys().chain(&self.built_in);
        let names = all.filter(|&name| name != "tcp_diag");
        let mut names: Vec<&str> = names.filter_map(|name| name.strip_prefix(prefix)).collect();
        names.sort_unstable();
        names
    }

    /// The files of the named modules and their dependencies, in the order of insertion. Built-in
    /// modules have none. Fails with the name of an unknown module.
    pub(crate) fn module_files(&self, names: &[String]) -> Result<Vec<PathBuf>, String> {
        let mut files: Vec<&str> = Vec::new();
        for name in names {
            let Some((file, needs)) = self.modules.get(name) else {
                match self.has_module(name) {
                    true => continue,
                    false => return Err(name.clone()),
                }
            };
            // The last dependency depends on none of the others.
            for file in needs.iter().rev().chain([file]) {
                if !files.contains(&file.as_str()) {
                    files.push(file);
                }
            }
        }
        Ok(files
            .into_iter()
            .map(|file| self.directory.join(file))
            .collect())
    }

    /// The files of [`ALWAYS`] and of further modules.
    ///
    /// # Errors
    /// [`Error::Preconditions`] with the first that `kernel` lacks.
    pub(crate) fn wanted_files(
        &self,
        kernel: &str,
        further: impl Iterator<Item = String>,
    ) -> Result<Vec<PathBuf>, Error> {
        let names: Vec<String> = ALWAYS
            .map(str::to_owned)
            .into_iter()
            .chain(further)
            .collect();
        self.module_files(&names).map_err(|name| {
            let what = name.strip_prefix("tcp_").unwrap_or(&name);
            Error::Preconditions(vec![format!(
                "{kernel} has no module {name} in {} ({what} is needed)",
                self.directory.display()
            )])
        })
    }
}

/// The name of a module, from its file. Dashes and underscores are equal.
fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    let endings = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending));
    endings.unwrap_or(name).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: &str = "kernel/a/top-one.ko: kernel/b/middle.ko.xz kernel/c/base.ko\n\
        kernel/b/middle.ko.xz: kernel/c/base.ko\nkernel/c/base.ko:\nkernel/d/alone.ko:\n";

    fn ordered(names: &[&str]) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let tree = Tree::parse_lists(
            Path::new(""),
            NEEDS,
            "kernel/net/ipv4/tcp_cubic.ko\n",
            "ipv6.parm=disable:Disable IPv6\0ipv6.parmtype=disable:int\0",
        );
        let files = tree.module_files(&names)?;
        Ok(files
            .iter()
            .map(|file| file.display().to_string())
            .collect())
    }

    #[test]
    fn each_comes_after_what_it_needs_and_once() {
        assert_eq!(
            ordered(&["alone", "top_one", "middle"]).unwrap(),
            [
                "kernel/d/alone.ko",
                "kernel/c/base.ko",
                "kernel/b/middle.ko.xz",
                "kernel/a/top-one.ko"
            ]
        );
    }

    #[test]
    fn what_is_built_in_needs_no_file_and_what_is_unknown_is_named() {
        assert_eq!(
            ordered(&["tcp_cubic", "tcp_reno", "ipv6"]).unwrap(),
            [""; 0]
        );
        assert_eq!(ordered(&["tcp_prague"]).unwrap_err(), "tcp_prague");
    }
}
