//! `thalweg-lab kernels`.

use anyhow::Result;
use clap::Subcommand;
use thalweg_guest::kernels::{self, Stock};

use thalweg_terminal::{Format, output};

/// Sub-commands for kernels of `thalweg-lab run --backend qemu`.
#[derive(Debug, Subcommand)]
pub enum Kernels {
    /// List them, the newest last, which is the default.
    List,
    /// Add the kernel of a Debian package; nothing is installed.
    ///
    /// It is unpacked below $XDG_CACHE_HOME/thalweg/kernels. Needs apt-get, dpkg and kmod.
    Add {
        /// A package, which apt downloads and checks, as linux-image-6.12-cloud-amd64; or a .deb
        /// file.
        #[arg(value_name = "PACKAGE|FILE")]
        package: String,
    },
    /// Remove one that was added.
    Remove {
        /// Name of the kernel in the list.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Lists, adds and removes kernels.
pub fn run(format: &Format, what: &Kernels) -> Result<()> {
    match what {
        Kernels::List => list_kernels(format, &kernels::list_kernels()?),
        Kernels::Add { package } => {
            let added = kernels::add_kernel(package)?;
            if format.json {
                return output::print_json(&serde_json::json!({
                    "name": added.name,
                    "package": added.package,
                    "was_there": added.was_there,
                }));
            }
            let package = &added.package;
            let how = if added.was_there { " (was there)" } else { "" };
            let text = format!(
                "{}: {} {}{how}\n",
                added.name, package.name, package.version
            );
            output::print(&text)
        }
        Kernels::Remove { name } => Ok(kernels::remove_kernel(name)?),
    }
}

fn list_kernels(format: &Format, all: &[Stock]) -> Result<()> {
    if format.json {
        return output::print_json(&all);
    }
    if all.is_empty() {
        return output::print(
            "no kernels; thalweg-lab kernels add linux-image-6.12-cloud-amd64 adds one\n",
        );
    }
    let known = |what: Option<bool>| match what {
        Some(true) => "yes".to_owned(),
        Some(false) => "no".to_owned(),
        None => "unknown".to_owned(),
    };
    let rows = all.iter().map(|stock| {
        let lacks = match (&stock.fault, stock.missing_modules()) {
            (Some(fault), _) => format!("cannot be used: {fault}"),
            (None, lacks) if lacks.is_empty() => "nothing".to_owned(),
            (None, lacks) => lacks.join(", "),
        };
        let package = stock.package.as_ref();
        vec![
            stock.name.clone(),
            package.map_or_else(String::new, |package| package.version.clone()),
            match package {
                Some(package) if package.name == format!("linux-image-{}", stock.name) => {
                    "package".to_owned()
                }
                Some(package) => package.name.clone(),
                None => "this machine".to_owned(),
            },
            known(stock.btf),
            known(stock.struct_ops),
            lacks,
        ]
    });
    let header = ["Kernel", "Version", "From", "BTF", "struct_ops", "Lacks"];
    output::print(&output::table(&header, &[], rows.collect()))
}
