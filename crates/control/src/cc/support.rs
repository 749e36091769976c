//! Whether this kernel runs congestion controls in BPF, and the layout of its structures for the
//! loader.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use libbpf_rs::btf::types::{FuncProto, MemberAttr, Ptr, Struct, StructMember};
use libbpf_rs::btf::{Btf, BtfType, ReferencesType};

use crate::error::Unavailable;
use crate::system;

const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";
/// The kernel's table of callbacks, and the type that wraps it in a `struct_ops` map.
const OPS: &str = "tcp_congestion_ops";
const VALUE: &str = "bpf_struct_ops_tcp_congestion_ops";
/// Exists if a link can keep a `struct_ops` map registered.
const LINK: &str = "bpf_struct_ops_link";

/// Properties of a capable kernel that the loader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Arguments of `cong_control`: 2, and 4 since Linux 6.10.
    pub cong_control_args: u32,
    /// Offset of `flags` in the value of a `struct_ops` map, bytes.
    pub flags_offset: usize,
}

/// Checks the running kernel.
///
/// # Errors
/// [`Unavailable`] with the missing part.
pub fn check_kernel_support() -> Result<Support, Unavailable> {
    if !system::has_kernel_btf() {
        return Err(Unavailable(
            "this kernel has no type information of its own (/sys/kernel/btf/vmlinux, \
             CONFIG_DEBUG_INFO_BTF), which congestion controls in BPF need"
                .to_owned(),
        ));
    }
    // Megabytes, which stay what they are as long as the machine runs.
    static TYPES: OnceLock<Result<Support, Unavailable>> = OnceLock::new();
    let support = TYPES.get_or_init(in_kernel).clone()?;
    let jit = fs::read_to_string(Path::new(JIT)).unwrap_or_default();
    if jit.trim() == "0" {
        return Err(Unavailable(
            "the BPF JIT is off (sysctl net.core.bpf_jit_enable=1 turns it on), and congestion \
             controls in BPF do not run in the interpreter"
                .to_owned(),
        ));
    }
    Ok(support)
}

/// Support according to the running kernel's types.
fn in_kernel() -> Result<Support, Unavailable> {
    let btf = Btf::from_vmlinux().map_err(|error| {
        Unavailable(format!(
            "the kernel's type information cannot be read: {error}"
        ))
    })?;
    in_types(&btf)
}

/// Support according to a kernel's types.
fn in_types(btf: &Btf<'_>) -> Result<Support, Unavailable> {
    let missing = |what: &str| Unavailable(what.to_owned());
    let (Some(value), Some(ops)) = (
        btf.type_by_name::<Struct<'_>>(VALUE),
        btf.type_by_name::<Struct<'_>>(OPS),
    ) else {
        return Err(missing(
            "this kernel has no struct_ops for TCP (Linux 5.6 with CONFIG_BPF_SYSCALL and \
             CONFIG_BPF_JIT has)",
        ));
    };
    if btf.type_by_name::<Struct<'_>>(LINK).is_none() {
        return Err(missing(
            "this kernel has no links for struct_ops (Linux 6.4 has), without which a congestion \
             control cannot be replaced while it is in use",
        ));
    }
    let unknown = || missing("this kernel's struct tcp_congestion_ops has another form");
    let data = offset_of(&value, "data").ok_or_else(unknown)?;
    let flags = offset_of(&ops, "flags").ok_or_else(unknown)?;
    let cong_control_args = parameters_of(btf, &ops, "cong_control").ok_or_else(unknown)?;
    Ok(Support {
        cong_control_args,
        flags_offset: data + flags,
    })
}

/// Offset of a member, bytes.
pub(super) fn offset_of(of: &Struct<'_>, name: &str) -> Option<usize> {
    match find_member(of, name)?.attr {
        MemberAttr::Normal { offset } => Some(offset as usize / 8),
        MemberAttr::BitField { .. } => None,
    }
}

fn find_member<'of>(of: &'of Struct<'of>, name: &str) -> Option<StructMember<'of>> {
    let mut members = of.iter();
    members.find(|member| member.name.is_some_and(|have| have == name))
}

/// Number of parameters of a member that points to a function.
fn parameters_of(btf: &Btf<'_>, of: &Struct<'_>, name: &str) -> Option<u32> {
    let pointer: Ptr<'_> = btf.type_by_id(find_member(of, name)?.ty)?;
    let target: BtfType<'_> = pointer.referenced_type();
    let prototype = FuncProto::try_from(target.skip_mods_and_typedefs()).ok()?;
    u32::try_from(prototype.len()).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// Types of a kernel that was never built, compiled from C.
    fn kernel(text: &str) -> Result<Support, Unavailable> {
        let directory = tempfile::tempdir().unwrap();
        let object = directory.path().join("types.o");
        let mut clang = Command::new("clang")
            .args(["-target", "bpf", "-g", "-x", "c", "-c", "-", "-o"])
            .arg(&object)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = clang.stdin.take().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        drop(stdin);
        assert!(clang.wait().unwrap().success());
        in_types(&Btf::from_path(&object).unwrap())
    }

    const OLD: &str = "
        struct sock; struct rate_sample;
        struct tcp_congestion_ops {
            void (*cong_control)(struct sock *, const struct rate_sample *);
            char name[16];
            unsigned key, flags;
        };
        struct bpf_struct_ops_tcp_congestion_ops {
            long common;
            struct tcp_congestion_ops data;
        } value;";

    #[test]
    fn each_want_of_a_kernel_has_its_own_words() {
        let none = kernel("int x;").unwrap_err();
        assert!(none.reason().contains("no struct_ops for TCP"), "{none}");
        let old = kernel(OLD).unwrap_err();
        assert!(old.reason().contains("Linux 6.4"), "{old}");
        assert!(old.to_string().ends_with("works without it"), "{old}");
    }

    #[test]
    fn the_arguments_of_cong_control_are_counted() {
        let link = "struct bpf_struct_ops_link { int id; } link;";
        let old = kernel(&format!("{OLD}{link}")).unwrap();
        // 8 bytes before the data; a pointer, 16 bytes of name and a key before the flags.
        let expected = Support {
            cong_control_args: 2,
            flags_offset: 8 + 8 + 16 + 4,
        };
        assert_eq!(old, expected);
        let new = OLD.replace("struct sock *,", "struct sock *, unsigned, int,");
        let new = kernel(&format!("{new}{link}")).unwrap();
        assert_eq!(new.cong_control_args, 4);
    }
}
