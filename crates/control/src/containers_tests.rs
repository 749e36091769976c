#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use serde_json::json;

use super::*;

/// Files of runtimes whose containers are this process.
struct Host {
    root: tempfile::TempDir,
    cgroups: PathBuf,
}

impl Host {
    fn new() -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
            cgroups: PathBuf::from("/sys/fs/cgroup"),
        }
    }

    fn file(&self, path: &str, content: &Value) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content.to_string()).unwrap();
    }

    /// runc's state of a container.
    fn runc(&self, directory: &str, labels: &[&str]) {
        let id = directory.rsplit_once('/').unwrap().1;
        let state = json!({
            "id": id,
            "init_process_pid": std::process::id(),
            "init_process_start": start_ticks(std::process::id()).unwrap(),
            "cgroup_paths": {"": self.cgroups.join(id), "cpu": format!("/elsewhere/{id}")},
            "config": {"labels": labels},
        });
        self.file(&format!("{directory}/state.json"), &state);
    }

    /// crun's.
    fn crun(&self, id: &str, cgroup: &str) {
        let status = json!({
            "pid": std::process::id(),
            "process-start-time": start_ticks(std::process::id()).unwrap(),
            "cgroup-path": cgroup,
            "bundle": format!("/bundles/{id}"),
        });
        self.file(&format!("run/crun/{id}/status"), &status);
    }

    fn found(&self) -> Vec<Container> {
        running_below(self.root.path(), &self.cgroups)
    }
}

fn means(container: &Container, selector: &str) -> bool {
    container.is_meant(&Selector::parse(selector).unwrap())
}

#[test]
fn containerd_names_container_and_pod_in_annotations() {
    let host = Host::new();
    host.runc(
        "run/containerd/runc/k8s.io/0123",
        &[
            "io.kubernetes.cri.container-name=web",
            "io.kubernetes.cri.sandbox-name=web-0",
            "io.kubernetes.cri.sandbox-namespace=shop",
            "odd",
            "equation=a=b",
        ],
    );
    let found = host.found();
    let [web] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(
        (web.name.as_str(), web.display_name()),
        ("web", "shop/web-0")
    );
    assert_eq!(web.cgroup, Some("/sys/fs/cgroup/0123".into()));
    for (selector, is_meant) in [
        ("web", true),
        ("0123", true),
        ("we", false),
        ("io.kubernetes.cri.sandbox-namespace=shop", true),
        ("io.kubernetes.cri.sandbox-namespace=sho", false),
        ("equation=a=b", true),
        ("odd=", false),
    ] {
        assert_eq!(means(web, selector), is_meant, "{selector}");
    }
    let own = fs::metadata("/proc/self/ns/net").unwrap().ino();
    assert_eq!(web.network_namespace(), Some(own));
}

#[test]
fn docker_names_containers_in_its_own_files() {
    let host = Host::new();
    host.runc("run/docker/runtime-runc/moby/0123", &["bundle=/x"]);
    host.file(
        "var/lib/docker/containers/0123/config.v2.json",
        &json!({"Name": "/web", "Config": {"Labels": {"app": "shop", "number": 1}}}),
    );
    let found = host.found();
    assert_eq!((found.len(), found[0].display_name()), (1, "web"));
    assert!(means(&found[0], "app=shop") && !means(&found[0], "number=1"));
}

#[test]
fn cri_o_on_crun_has_labels_in_an_annotation() {
    let host = Host::new();
    host.crun("0123", "/kubepods/0123");
    let labels = json!({
        "io.kubernetes.container.name": "web",
        "io.kubernetes.pod.name": "web-0",
        "io.kubernetes.pod.namespace": "shop",
        "app": "web",
    });
    host.file(
        "bundles/0123/config.json",
        &json!({"annotations": {(CRIO_LABELS): labels.to_string()}}),
    );
    let found = host.found();
    assert_eq!((found.len(), found[0].display_name()), (1, "shop/web-0"));
    assert_eq!(found[0].cgroup, Some("/sys/fs/cgroup/kubepods/0123".into()));
    assert!(means(&found[0], "web") && means(&found[0], "app=web"));
}

#[test]
fn a_container_without_a_cgroup_does_not_have_the_machines() {
    let host = Host::new();
    host.crun("none", "");
    host.crun("root", "/");
    let found = host.found();
    let cgroups: Vec<_> = found.iter().map(|one| &one.cgroup).collect();
    assert_eq!(cgroups, [&None, &None]);
}

#[test]
fn a_bundle_of_a_user_holds_nothing_up() {
    let host = Host::new();
    for id in ["fifo", "link", "directory"] {
        host.crun(id, "/own");
        fs::create_dir_all(host.root.path().join("bundles").join(id)).unwrap();
    }
    let config = |id: &str| host.root.path().join(format!("bundles/{id}/config.json"));
    nix::unistd::mkfifo(&config("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let labels = json!({"annotations": {"of": "another"}});
    host.file("elsewhere.json", &labels);
    std::os::unix::fs::symlink(host.root.path().join("elsewhere.json"), config("link")).unwrap();
    fs::create_dir(config("directory")).unwrap();
    let found = host.found();
    let labels: Vec<_> = found.iter().map(|one| one.labels.len()).collect();
    assert_eq!(labels, [0, 0, 0]);
}

#[test]
fn what_has_ended_or_makes_no_sense_is_left_out() {
    let host = Host::new();
    host.runc("run/runc/good", &[]);
    host.runc("run/runc/ended", &[]);
    host.runc("run/runc/outside", &[]);
    let change = |id: &str, key: &str, value: Value| {
        let path = host.root.path().join(format!("run/runc/{id}/state.json"));
        let mut state: Value = read_json(&path).unwrap();
        state[key] = value;
        fs::write(path, state.to_string()).unwrap();
    };
    // Its number is another process's by now.
    change("ended", "init_process_start", json!(1));
    change("outside", "cgroup_paths", json!({"": "/elsewhere"}));
    host.file("run/runc/other/state.json", &json!({"id": "other"}));
    host.file("run/runc/list/state.json", &json!([]));
    fs::create_dir(host.root.path().join("run/runc/empty")).unwrap();
    fs::write(host.root.path().join("run/runc/file"), "").unwrap();
    fs::create_dir(host.root.path().join("run/runc/half")).unwrap();
    fs::write(host.root.path().join("run/runc/half/state.json"), "{\"id").unwrap();
    let found = host.found();
    let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["good"]);
}
