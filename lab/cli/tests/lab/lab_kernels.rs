//! `thalweg-lab kernels`: packages of kernels, unpacked into a cache. The tests make the packages,
//! of images that have only a header.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use thalweg_testbed::place::{Place, assert_code, finish, on_small_disk, said};
use thalweg_testbed::stock::image;
use thalweg_testbed::{laboratory, privileged, wait_for};

const RELEASE: &str = "6.12.1-test";

/// A cache of its own, and packages.
struct Packages(Place);

impl Packages {
    fn new() -> Self {
        Self(Place::new(""))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// Content of the cache.
    fn kept(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("cache/thalweg/kernels"));
        let entries = entries.into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(laboratory());
        command
            .args(["--json", "kernels"])
            .args(arguments)
            .env("XDG_CACHE_HOME", self.path("cache"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        finish(self.command(arguments).spawn().unwrap())
    }

    /// The list, without this machine's own kernels.
    fn list(&self) -> Vec<Value> {
        let output = self.run(&["list"]);
        assert_code(&output, 0);
        let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        all.into_iter()
            .filter(|stock| !stock["package"].is_null())
            .collect()
    }

    /// A package with these files, and further lines of its control file.
    fn package(&self, name: &str, control: &str, files: &[(&str, &[u8])]) -> String {
        let tree = self.path(&format!("tree-{name}"));
        let all = "Version: 6.12.1-1\nMaintainer: nobody <nobody@example.org>\nDescription: test\n";
        let architecture = match control.contains("Architecture") {
            true => "",
            false => "Architecture: amd64\n",
        };
        let control = format!("Package: {name}\n{all}{architecture}{control}");
        for (file, bytes) in files
            .iter()
            .chain(&[("DEBIAN/control", control.as_bytes())])
        {
            let file = tree.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, bytes).unwrap();
        }
        let archive = self.path(&format!("{name}.deb"));
        let built = Command::new("dpkg-deb")
            .args(["--root-owner-group", "--build", "-Znone"])
            .args([&tree, &archive])
            .output()
            .unwrap();
        assert!(built.status.success(), "{built:?}");
        archive.to_str().unwrap().to_owned()
    }

    /// A package with a kernel, some bytes of it random.
    fn kernel(&self, bytes: usize) -> String {
        let configuration = b"CONFIG_DEBUG_INFO_BTF=y\nCONFIG_BPF_JIT=y\n";
        let blob: Vec<u8> = (0..bytes)
            .map(|number| ((number * 7919) >> 3) as u8)
            .collect();
        self.package(
            &format!("linux-image-{RELEASE}"),
            "",
            &[
                (&format!("boot/vmlinuz-{RELEASE}"), &image(RELEASE)),
                (&format!("boot/config-{RELEASE}"), configuration),
                (
                    &format!("lib/modules/{RELEASE}/modules.builtin"),
                    b"kernel/net/veth.ko\n",
                ),
                (&format!("lib/modules/{RELEASE}/blob"), &blob),
            ],
        )
    }
}

/// Packages as Debian has them since 14, named as in its archive: the image, its modules and their lists each have one.
fn split(place: &Packages) -> Vec<String> {
    let package = |part: &str, control: &str, files: &[(&str, &[u8])]| {
        let file = place.package(&format!("linux-{part}-{RELEASE}"), control, files);
        let named = file.replace(".deb", "_6.12.1-1_amd64.deb");
        fs::rename(&file, &named).unwrap();
        named
    };
    let at = |file: &str| format!("usr/lib/modules/{RELEASE}/{file}");
    let base = format!("linux-base-{RELEASE} (= 6.12.1-1)");
    vec![
        package(
            "image",
            &format!(
                "Depends: dracut | linux-initramfs-tool, {base}, linux-binary-{RELEASE} (= 6.12.1-1), \
                 linux-modules-{RELEASE} (= 6.12.1-1)\nPre-Depends: linux-base\n"
            ),
            &[("usr/share/doc/x", b"")],
        ),
        package(
            "binary",
            &format!("Depends: {base}\n"),
            &[(&at("vmlinuz"), &image(RELEASE))],
        ),
        package(
            "modules",
            &format!("Depends: kmod, {base}\n"),
            &[(&at("kernel/net/blob"), b"x")],
        ),
        package(
            "base",
            "",
            &[
                (&at("config"), b"CONFIG_DEBUG_INFO_BTF=y\n"),
                (&at("modules.builtin"), b"kernel/net/veth.ko\n"),
                // IPv6 can be no module there.
                (
                    &at("modules.builtin.modinfo"),
                    b"ipv6.parm=disable:Disable IPv6\0",
                ),
            ],
        ),
    ]
}

#[test]
fn a_kernel_in_several_packages_is_put_together() {
    let place = Packages::new();
    let files = split(&place);
    let added = json(&place.run(&["add", &files[0]]));
    assert_eq!(added["name"], RELEASE);
    let [stock] = &place.list()[..] else {
        panic!("{:?}", place.list());
    };
    assert_eq!(stock["package"]["name"], format!("linux-image-{RELEASE}"));
    assert_eq!(stock["fault"], Value::Null, "{stock}");
    assert_eq!(stock["btf"], true, "{stock}");
    assert!(
        stock["has"]["veth"] == true && stock["has"]["ipv6"] == true,
        "{stock}"
    );
    let modules = place.kept()[0].join("lib/modules").join(RELEASE);
    assert!(modules.join("kernel/net/blob").is_file());
}

#[test]
fn a_missing_part_of_a_kernel_is_named() {
    for (part, asked) in [(1, 0), (2, 0), (3, 0), (2, 1)] {
        let place = Packages::new();
        let files = split(&place);
        let name = ["image", "binary", "modules", "base"][part];
        fs::remove_file(&files[part]).unwrap();
        let output = place.run(&["add", &files[asked]]);
        assert_refused(&place, &output, &format!("linux-{name}-{RELEASE}"));
    }
}

#[test]
fn modules_below_usr_are_found() {
    let place = Packages::new();
    let archive = place.package(
        &format!("linux-image-{RELEASE}"),
        "Depends: kmod\n",
        &[
            (&format!("boot/vmlinuz-{RELEASE}"), &image(RELEASE)),
            (
                &format!("usr/lib/modules/{RELEASE}/modules.builtin"),
                b"kernel/net/veth.ko\n",
            ),
            (&format!("usr/lib/modules/{RELEASE}/kernel/net/blob"), b"x"),
        ],
    );
    json(&place.run(&["add", &archive]));
    let stock = &place.list()[0];
    assert_eq!(stock["fault"], Value::Null, "{stock}");
    assert_eq!(stock["has"]["veth"], true, "{stock}");
}

fn json(output: &Output) -> Value {
    assert_code(output, 0);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Checks that the output is one line with these words, and that nothing is left.
fn assert_refused(place: &Packages, output: &Output, words: &str) {
    assert_code(output, 1);
    let said = said(output);
    assert!(said.contains(words), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(place.kept(), Vec::<PathBuf>::new());
}

#[test]
fn a_package_is_added_listed_and_removed() {
    let place = Packages::new();
    let archive = place.kernel(0);
    assert_eq!(place.list(), Vec::<Value>::new());
    let added = json(&place.run(&["add", &archive]));
    assert_eq!(
        (&added["name"], &added["was_there"]),
        (&RELEASE.into(), &false.into())
    );
    assert_eq!(json(&place.run(&["add", &archive]))["was_there"], true);
    let all = place.list();
    assert_eq!(all.len(), 1);
    let stock = &all[0];
    assert_eq!(stock["name"], RELEASE);
    assert_eq!(stock["package"]["name"], format!("linux-image-{RELEASE}"));
    assert_eq!(stock["package"]["version"], "6.12.1-1");
    assert_eq!(
        (&stock["btf"], &stock["struct_ops"]),
        (&true.into(), &true.into())
    );
    assert_eq!(
        (&stock["has"]["veth"], &stock["has"]["sch_tbf"]),
        (&true.into(), &false.into())
    );
    assert!(stock["fault"].is_null());
    let refused = place.run(&["remove", "6.12.2-test"]);
    assert_code(&refused, 1);
    assert!(
        said(&refused).contains("there is none of that name"),
        "{}",
        said(&refused)
    );
    assert_code(&place.run(&["remove", RELEASE]), 0);
    assert_eq!(place.kept(), Vec::<PathBuf>::new());
}

#[test]
fn what_is_no_kernel_is_refused_in_one_line() {
    let place = Packages::new();
    let bogus = place.path("bogus.deb");
    fs::write(&bogus, "hello ".repeat(1000)).unwrap();
    let other = image("6.12.2-test");
    let named = format!("boot/vmlinuz-{RELEASE}");
    for (package, words) in [
        (
            bogus.to_str().unwrap().to_owned(),
            "is not a Debian format archive",
        ),
        (
            place.path("absent.deb").to_str().unwrap().to_owned(),
            "No such file",
        ),
        (
            place.package("hello", "", &[]),
            "it is hello, expected a package of a kernel",
        ),
        (
            place.package("linux-image-arm", "Architecture: arm64\n", &[]),
            "it is for arm64, expected amd64",
        ),
        (
            place.package("linux-image-none", "", &[]),
            "depends on none",
        ),
        (
            place.package("linux-image-meta", "Depends: linux-image-a (= 1)\n", &[]),
            "depends on linux-image-a: name that package",
        ),
        (
            place.package(
                "linux-image-two",
                "Depends: linux-image-a, linux-image-b\n",
                &[],
            ),
            "name one of linux-image-a, linux-image-b",
        ),
        (
            place.package("linux-image-text", "", &[(&named, b"text")]),
            "is no Linux kernel for x86",
        ),
        (
            place.package("linux-image-misnamed", "", &[(&named, &other)]),
            "says that it is 6.12.2-test",
        ),
        ("no package".to_owned(), "expected the name of a package"),
    ] {
        assert_refused(&place, &place.run(&["add", &package]), words);
    }
}

#[test]
fn apt_downloads_what_a_meta_package_depends_on() {
    let place = Packages::new();
    let meta = format!("Depends: linux-image-{RELEASE} (= 6.12.1-1)\n");
    place.package("linux-image-meta", &meta, &[]);
    place.kernel(0);
    let script = format!(
        "[ $2 = download ] || exit 1\n\
         cp {}/\"$3\".deb . || {{ echo \"E: Unable to locate package $3\" >&2; exit 100; }}",
        place.0.directory().display()
    );
    let path = place.0.first_on_path("apt-get", &script);
    let add = |package: &str| {
        let mut command = place.command(&["add", package]);
        finish(command.env("PATH", &path).spawn().unwrap())
    };
    assert_refused(
        &place,
        &add("nosuch"),
        "Unable to locate package nosuch (apt-get update",
    );
    assert_eq!(json(&add("linux-image-meta"))["name"], RELEASE);
    assert_eq!(
        place.list()[0]["package"]["name"],
        format!("linux-image-{RELEASE}")
    );
    assert_eq!(place.kept().len(), 1);
}

#[test]
fn two_at_once_and_what_a_killed_one_left() {
    let place = Packages::new();
    let archive = place.kernel(1 << 20);
    // The highest process id is below 2^22.
    let stale = place.path("cache/thalweg/kernels/thalweg-lab-4194304-new0");
    fs::create_dir_all(stale.join("tree")).unwrap();
    let start = || place.command(&["add", &archive]).spawn().unwrap();
    for child in [start(), start(), start()] {
        assert_eq!(json(&finish(child))["name"], RELEASE);
    }
    assert_eq!(place.kept().len(), 1);
    assert_eq!(place.list().len(), 1);
}

#[test]
fn a_signal_leaves_nothing() {
    let place = Packages::new();
    let mark = place.path("started");
    let path = place
        .0
        .first_on_path("apt-get", &format!("touch {}; sleep 1000", mark.display()));
    let mut command = place.command(&["add", "linux-image-x"]);
    let child = command.env("PATH", path).spawn().unwrap();
    wait_for("the download", || mark.exists().then_some(()));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    assert_refused(&place, &finish(child), "interrupted");
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_full_disk_is_named_and_nothing_is_left() {
    if !privileged() {
        return;
    }
    let place = Packages::new();
    let archive = place.kernel(2 << 20);
    let cache = place.path("cache");
    fs::create_dir(&cache).unwrap();
    let mut command = on_small_disk(&cache, &place.command(&["add", &archive]));
    let output = finish(command.spawn().unwrap());
    assert_refused(&place, &output, "No space left on device");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}
