//! Containers of a real runtime, runc: what the agent sees of them, rules by their names and
//! labels, and the agent in one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use thalweg_lab::host::Side;

use thalweg_testbed::{Bed, plain, privileged, skip, thalweg, wait_for};

const BUSYBOX: &str = "/bin/busybox";
const MANIFEST: &str = include_str!("../../../../packaging/kubernetes/thalweg.yaml");

const UNIT: &str = include_str!("../../../../packaging/thalweg.service");

fn available() -> bool {
    privileged()
        && (Command::new("runc").arg("--version").output().is_ok() || skip("no runc"))
        && (Path::new(BUSYBOX).exists() || skip("no busybox-static"))
}

/// A container of runc, deleted with this value.
struct Container {
    id: String,
    bundle: tempfile::TempDir,
}

impl Container {
    /// Makes a bundle with busybox; `change` has the last word on its configuration.
    fn new(bed: &Bed, name: &str, annotations: Value, change: impl FnOnce(&mut Value)) -> Self {
        let bundle = tempfile::tempdir().unwrap();
        let root = bundle.path().join("rootfs");
        for directory in ["bin", "dev", "proc", "sys", "usr", "etc", "bed"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::copy(BUSYBOX, root.join("bin/busybox")).unwrap();
        let cgroup = bed
            .pair
            .cgroup_path()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap();
        let mut configuration = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["/bin/busybox", "sleep", "600"],
                "env": ["PATH=/bin:/usr/bin"],
                "cwd": "/",
                "noNewPrivileges": true,
            },
            "root": {"path": "rootfs", "readonly": true},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            ],
            "annotations": annotations,
            "linux": {
                "namespaces": [
                    {"type": "mount"},
                    {"type": "pid"},
                    {"type": "network", "path": format!(
                        "/run/netns/{}", bed.pair.namespace_name(Side::Client)
                    )},
                ],
                "cgroupsPath": format!("/{cgroup}/{name}"),
            },
        });
        change(&mut configuration);
        let file = bundle.path().join("config.json");
        fs::write(file, configuration.to_string()).unwrap();
        let id = format!("thalweg-test-{}-{name}", std::process::id());
        Self { id, bundle }
    }

    fn named(bed: &Bed, name: &str, annotations: Value) -> Self {
        let container = Self::new(bed, name, annotations, |_| {});
        container.start();
        container
    }

    fn log(&self) -> PathBuf {
        self.bundle.path().join("log")
    }

    fn logged(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Starts its process, whose output goes to the log.
    fn start(&self) {
        let log = fs::File::create(self.log()).unwrap();
        let status = Command::new("runc")
            .args(["run", "--detach", "--bundle"])
            .arg(self.bundle.path())
            .arg(&self.id)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .status();
        assert!(status.unwrap().success(), "{}", self.logged());
    }

    fn runs(&self, arguments: &[&str]) -> Output {
        Command::new("runc")
            .args(["exec", &self.id])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// One connection to a sink.
    fn connects(&self, address: &str) {
        let command = format!("busybox head -c 300000 /dev/zero | busybox nc {address} 5001");
        let output = self.runs(&["/bin/busybox", "sh", "-c", &command]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }

    /// Ends its processes.
    fn delete(&self) {
        let state = Path::new("/run/runc").join(&self.id).join("state.json");
        let state = fs::read_to_string(state).unwrap_or_default();
        let state: Value = serde_json::from_str(&state).unwrap_or_default();
        let _ = Command::new("runc")
            .args(["delete", "--force", &self.id])
            .output();
        // The parents that runc made in the hierarchies of version 1; others are not empty.
        for path in state["cgroup_paths"].as_object().into_iter().flatten() {
            let parent = path.1.as_str().and_then(|path| Path::new(path).parent());
            if path.0.is_empty() {
                continue;
            }
            let _ = parent.map(fs::remove_dir);
        }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("container {}: {}", self.id, self.logged());
        }
        self.delete();
    }
}

const RULES: &str = "name = \"t\"\n\
    [[rule]]\nname = \"web\"\nmatch.container = \"web\"\non.established = { tos = 32 }\n\
    [[rule]]\nname = \"shop\"\nmatch.container = [\"no-such\", \"app=shop\"]\non.established = { tos = 16 }\n\
    [[rule]]\nname = \"rest\"\nmatch.direction = \"active\"\non.established = { tos = 8 }\n";

fn web(bed: &Bed) -> Container {
    let annotations = json!({
        "io.kubernetes.cri.container-name": "web",
        "io.kubernetes.cri.sandbox-namespace": "front\u{1b}[2J",
        "io.kubernetes.cri.sandbox-name": "web-0",
    });
    Container::named(bed, "web", annotations)
}

/// How often each rule matched.
fn matched(bed: &Bed) -> [u64; 3] {
    ["web", "shop", "rest"].map(|rule| bed.rule(rule)["matched"].as_u64().unwrap())
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn rules_and_hosts_know_containers_by_name_and_label() {
    if !available() {
        return;
    }
    let bed = Bed::running("containers", "");
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let said = bed.apply(RULES)["notes"].to_string();
    for name in ["web", "no-such", "app=shop"] {
        let note = format!("no container that runs here is \\\"{name}\\\"");
        assert!(said.contains(&note), "{said}");
    }
    let first = web(&bed);
    let shop = Container::named(&bed, "shop", json!({"app": "shop"}));
    let other = Container::named(&bed, "other", json!({"app": "shops"}));
    wait_for("the agent to see the containers", || {
        let seen = bed.logged().matches("cgroup of a rule has come").count();
        (seen == 2).then_some(())
    });
    first.connects(&address);
    shop.connects(&address);
    shop.connects(&address);
    other.connects(&address);
    assert_eq!(matched(&bed), [1, 2, 1]);

    let host = wait_for("the names at the host", || {
        bed.host(&address)
            .filter(|host| host["container"].is_string())
    });
    // All three have the network of the bed's client.
    let names = format!("front\u{1b}[2J/web-0, {}, {}", other.id, shop.id);
    assert_eq!(host["container"], names);
    for command in [vec!["hosts"], vec!["explain", &address]] {
        let output = bed.thalweg(&command);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(text.contains("front\\u{1b}[2J/web-0"), "{text}");
    }

    // Another container of the name, when the policy is applied again.
    first.delete();
    first.start();
    let said = bed.apply(RULES)["notes"].to_string();
    assert!(!said.contains("\\\"web\\\""), "{said}");
    first.connects(&address);
    shop.connects(&address);
    assert_eq!(matched(&bed), [1, 1, 0]);
    // One connection has begun before the policy, in a container with two bits.
    let both = RULES.replace("\"no-such\"", &format!("\"{}\"", shop.id));
    bed.apply(&both);
    shop.connects(&address);
    assert_eq!(matched(&bed), [0, 1, 0]);

    // What has ended leaves no program behind.
    let marks = || {
        let pins = fs::read_dir(bed.pin.join("policy")).unwrap();
        let pins = pins
            .flatten()
            .filter_map(|entry| fs::read_dir(entry.path()).ok());
        let names = pins.flatten().flatten().map(|entry| entry.file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        names.filter(|name| name.starts_with("cgroup_")).count()
    };
    assert_eq!(marks(), 3);
    first.delete();
    wait_for("the agent to see its end", || (marks() == 2).then_some(()));
}

/// The manifest's list of capabilities: some of the unit's.
fn capabilities() -> Vec<String> {
    let list = MANIFEST.split("add:\n").nth(1).unwrap();
    let lines = list.lines().map(str::trim);
    let lines = lines.take_while(|line| line.starts_with(['#', '-']));
    let names = lines.filter_map(|line| line.strip_prefix("- "));
    let names: Vec<String> = names.map(|name| format!("CAP_{name}")).collect();
    let unit = UNIT
        .lines()
        .find(|line| line.starts_with("CapabilityBoundingSet="));
    let unit: Vec<&str> = unit.unwrap().split(['=', ' ']).collect();
    assert!(
        names.iter().all(|name| unit.contains(&name.as_str())),
        "{names:?} {unit:?}"
    );
    names
}

/// The agent of a bed in a container that may what the manifest says, but for one capability.
fn agent(bed: &Bed, without: Option<&str>) -> Container {
    let mut capabilities = capabilities();
    assert_eq!(capabilities.len(), 6, "{capabilities:?}");
    capabilities.retain(|name| without != Some(name));
    let directory = bed.directory.path().to_str().unwrap();
    let bind = |from: &str, to: &str, mode: &str| json!({"destination": to, "source": from, "type": "bind", "options": ["rbind", mode]});
    let name = format!("agent-{}", without.unwrap_or("all"));
    let container = Container::new(bed, &name, json!({}), |configuration| {
        configuration["process"]["args"] =
            json!(["/bin/thalweg", "--config", "/bed/agent.toml", "run"]);
        for set in ["bounding", "permitted", "effective"] {
            configuration["process"]["capabilities"][set] = json!(capabilities);
        }
        configuration["mounts"] = json!([
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            bind("/sys", "/sys", "ro"),
            bind("/sys/fs/cgroup", "/sys/fs/cgroup", "ro"),
            bind("/sys/fs/bpf", "/sys/fs/bpf", "rw"),
            // The command and its libraries.
            bind("/usr", "/usr", "ro"),
            bind(thalweg(), "/bin/thalweg", "ro"),
            bind("/run/runc", "/run/runc", "ro"),
            // State and socket, by the paths of the bed's configuration.
            bind(directory, directory, "rw"),
            bind(directory, "/bed", "ro"),
        ]);
        configuration["linux"]["namespaces"] =
            json!([{"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "cgroup"}]);
        configuration["linux"]["cgroupsPath"] =
            json!(format!("/thalweg-test-{}-{name}", std::process::id()));
    });
    let root = container.bundle.path().join("rootfs");
    for link in ["lib", "lib64", "sbin"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), root.join(link)).unwrap();
    }
    for directory in [directory, "/run/runc"] {
        fs::create_dir_all(root.join(&directory[1..])).unwrap();
    }
    fs::write(root.join("bin/thalweg"), "").unwrap();
    container
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn the_agent_runs_in_a_container_with_what_the_manifest_grants() {
    if !available() {
        return;
    }
    let bed = Bed::new(
        &plain("incontainer"),
        "[arms]\nallow = [\"cubic\", \"reno\"]\n",
    );
    let address = bed.server_address();
    let _sink = bed.sink(&address);
    let thalweg = |container: &Container, command: &[&str]| {
        let start = ["/bin/thalweg", "--config", "/bed/agent.toml"];
        container.runs(&[&start[..], command].concat())
    };
    let lives = |container: &Container| {
        wait_for("the agent in the container", || {
            assert!(
                !container.logged().contains("thalweg: "),
                "{}",
                container.logged()
            );
            let output = thalweg(container, &["status", "--check"]);
            output.status.success().then_some(())
        });
    };
    let all = agent(&bed, None);
    all.start();
    lives(&all);
    // Both ends are in the bed's cgroup; the server's process makes its namespace known.
    bed.connect(&address, 5, 300_000);
    bed.counter_reaches("decided", 5);
    let output = thalweg(&all, &["detach"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!bed.pin.exists());
    all.delete();

    let blind = agent(&bed, Some("CAP_SYS_PTRACE"));
    blind.start();
    lives(&blind);
    bed.connect(&address, 5, 300_000);
    bed.counter_reaches("outside", 10);
    assert_eq!(bed.counter("decided"), 0);
    assert!(thalweg(&blind, &["detach"]).status.success());
    blind.delete();

    let refused = agent(&bed, Some("CAP_NET_ADMIN"));
    refused.start();
    wait_for("its refusal", || {
        refused
            .logged()
            .contains("missing privilege: CAP_NET_ADMIN")
            .then_some(())
    });
    assert!(!bed.pin.exists());
}
