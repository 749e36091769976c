//! A congestion control as a compiled object: from bytes to a `struct_ops` map in the kernel.

use std::os::fd::BorrowedFd;
use std::path::Path;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Struct;
use libbpf_rs::{MapType, Object, ObjectBuilder, OpenObject, ProgramType};
use thalweg_units::file::{MAX_FILE_BYTES, read_bytes};

use super::support::{Support, offset_of};
use crate::error::{Error, Result, bail};
use crate::kernel_objects::printed_name;
use crate::object;
use thalweg_units::printable;

/// Bytes of a congestion control's name in the kernel, including the final 0 (net/tcp.h,
/// TCP_CA_NAME_MAX).
const NAME_BYTES: usize = 16;
/// Map flag of a `struct_ops` that a link keeps (linux/bpf.h, BPF_F_LINK).
const BPF_F_LINK: u32 = 1 << 13;
/// The map of a program that uses THALWEG_KERNEL (thalweg_tcp.h).
const KERNEL_FACTS: &str = ".rodata.kernel";

/// Fills maps of an object before its congestion control can be chosen.
pub type Fill<'a> = dyn Fn(&mut Object) -> Result<()> + 'a;

/// A compiled congestion control that is not in the kernel yet.
pub struct Program<'a> {
    /// Label in errors: a name, or a file.
    label: String,
    bytes: Vec<u8>,
    fill: Option<Box<Fill<'a>>>,
    /// Maps of other objects that take the place of those of the same name.
    shared: Vec<(&'a str, BorrowedFd<'a>)>,
}

impl std::fmt::Debug for Program<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Program({})", self.label)
    }
}

impl<'a> Program<'a> {
    /// One that comes with Thalweg.
    pub fn built_in(label: &str, bytes: Vec<u8>) -> Self {
        Self {
            label: label.to_owned(),
            bytes,
            fill: None,
            shared: Vec::new(),
        }
    }

    /// One from a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a BPF object.
    pub fn from_file(file: &Path) -> Result<Self> {
        object::check_file(file)?;
        let bytes = read_bytes(file, MAX_FILE_BYTES)?;
        Ok(Self {
            label: file.display().to_string(),
            bytes,
            fill: None,
            shared: Vec::new(),
        })
    }

    /// Sets a function that fills the object's maps after loading, before any flow can use it.
    #[must_use]
    pub fn filled_by(mut self, fill: impl Fn(&mut Object) -> Result<()> + 'a) -> Self {
        self.fill = Some(Box::new(fill));
        self
    }

    /// Sets maps of other objects that take the place of those of the same name.
    #[must_use]
    pub fn sharing(mut self, maps: Vec<(&'a str, BorrowedFd<'a>)>) -> Self {
        self.shared = maps;
        self
    }

    /// The name that the object gives its congestion control.
    ///
    /// # Errors
    /// The object is broken, or is not a congestion control.
    pub fn own_name(&self) -> Result<String> {
        object::with_libbpf_log(|| {
            let mut open = self.open_object()?;
            let at = self.name_offset()?;
            let mut ops = self.struct_ops_map(&mut open)?;
            let value = ops.initial_value_mut().unwrap_or_default();
            let bytes = value.get(at..at + NAME_BYTES);
            Ok(printed_name(bytes.unwrap_or_default()))
        })
    }

    /// Loads it under a name of at most 15 bytes; it is not registered yet.
    ///
    /// # Errors
    /// A fault of the object, or the kernel does not allow it.
    pub(super) fn load_object(&self, name: &str, support: &Support) -> Result<Object> {
        let mut object = object::with_libbpf_log(|| {
            let mut open = self.open_object()?;
            self.prepare_object(&mut open, name, support)?;
            open.load()
                .map_err(|error| self.refusal_error(&object::refusal_words(&error)))
        })?;
        if let Some(fill) = &self.fill {
            fill(&mut object)?;
        }
        Ok(object)
    }

    fn open_object(&self) -> Result<OpenObject> {
        let opened = ObjectBuilder::default()
            .name("thalweg_cc")
            .and_then(|builder| builder.open_memory(&self.bytes));
        opened.map_err(|error| {
            Error::Invalid(format!(
                "{} cannot be read as a BPF object: {}",
                self.label,
                object::fault_words(&error)
            ))
        })
    }

    /// Sets the name, and the facts about the kernel that the program needs.
    fn prepare_object(&self, open: &mut OpenObject, name: &str, support: &Support) -> Result<()> {
        for mut program in open.progs_mut() {
            if program.prog_type() != ProgramType::StructOps {
                program.set_autoload(false);
            }
        }
        for mut map in open.maps_mut() {
            let shared = self.shared.iter().find(|(it, _)| map.name() == *it);
            if let Some((_, fd)) = shared {
                map.reuse_fd(*fd)?;
            }
            if map.name() != KERNEL_FACTS {
                continue;
            }
            let value = map.initial_value_mut().unwrap_or_default();
            let Some(arguments) = value.get_mut(..4) else {
                bail!(
                    Invalid,
                    "{}: section {KERNEL_FACTS} is too short",
                    self.label
                );
            };
            arguments.copy_from_slice(&support.cong_control_args.to_ne_bytes());
        }
        let at = self.name_offset()?;
        let mut ops = self.struct_ops_map(open)?;
        let value = ops.initial_value_mut().unwrap_or_default();
        let Some(field) = value.get_mut(at..at + NAME_BYTES) else {
            bail!(
                Invalid,
                "{}: its tcp_congestion_ops has no room for a name",
                self.label
            );
        };
        field.fill(0);
        field[..name.len()].copy_from_slice(name.as_bytes());
        Ok(())
    }

    /// The one `struct_ops` map.
    fn struct_ops_map<'o>(&self, open: &'o mut OpenObject) -> Result<libbpf_rs::OpenMapMut<'o>> {
        let label = &self.label;
        let maps = open.maps_mut();
        let mut found: Vec<_> = maps
            .filter(|map| map.map_type() == MapType::StructOps)
            .collect();
        let names = |found: &[libbpf_rs::OpenMapMut<'_>]| {
            let names = found
                .iter()
                .map(|map| printable(&map.name().to_string_lossy()));
            names.collect::<Vec<_>>().join(", ")
        };
        let mut map = match found.len() {
            0 => bail!(
                Invalid,
                "{label} has no congestion control: expected one struct tcp_congestion_ops in \
                 section \".struct_ops.link\""
            ),
            1 => found.remove(0),
            _ => bail!(
                Invalid,
                "{label} has several congestion controls ({}); expected one",
                names(&found)
            ),
        };
        // A map in section ".struct_ops", the only form before Linux 6.4, lacks this flag. Without
        // a link it could neither stay nor be replaced.
        let flags = map.map_flags();
        if flags & BPF_F_LINK == 0 {
            map.set_map_flags(flags | BPF_F_LINK)?;
        }
        Ok(map)
    }

    /// Offset of the name in the object's own `tcp_congestion_ops`, bytes.
    fn name_offset(&self) -> Result<usize> {
        let btf = Btf::from_raw("thalweg_cc", &self.bytes).ok().flatten();
        if btf.as_ref().is_some_and(|btf| !object::is_sound(btf)) {
            bail!(
                Invalid,
                "{} has type information (BTF) that is broken",
                self.label
            );
        }
        let offset = btf.and_then(|btf| {
            let ops = btf.type_by_name::<Struct<'_>>("tcp_congestion_ops")?;
            offset_of(&ops, "name")
        });
        offset.ok_or_else(|| {
            Error::Invalid(format!(
                "{} has no congestion control: expected one struct tcp_congestion_ops with a \
                 name, compiled with -g",
                self.label
            ))
        })
    }

    /// The kernel's refusal in one line.
    fn refusal_error(&self, words: &str) -> Error {
        let label = &self.label;
        if words.contains("no write support to") {
            return Error::Refused(format!(
                "the kernel refused {label}: it does not let congestion controls in BPF write a \
                 field that this one has to write, newer kernels may ({words})"
            ));
        }
        Error::Refused(format!("the kernel refused {label}: {words}"))
    }
}
