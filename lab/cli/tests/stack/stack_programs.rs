//! Common programs on a stack, end to end: received data is compared with sent data.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::stack::{HOST, MACHINE, Net, available, written};
use crate::stack_learn::serve;
use crate::stack_user::{Account, USER};
use crate::stack_wire::{on_the_host, serving};
use thalweg_testbed::{laboratory, skip, wait_for};

/// Whether these programs are available; the set-up installs their packages.
fn there(programs: &[(&str, &str)]) -> bool {
    programs.iter().all(|(program, package)| {
        let found = Command::new("sh")
            .args(["-c", "command -v \"$0\" >/dev/null", program])
            .status()
            .unwrap();
        found.success() || skip(&format!("no {program} (package {package})"))
    })
}

/// A server on the host, ended with this value.
struct Server(Child);

impl Server {
    /// Starts it and waits until it accepts connections.
    fn start(net: &Net, mut command: Command, port: u16) -> Self {
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self(child);
        wait_for("a server", || {
            net.within(&net.host, || TcpStream::connect((HOST, port)).ok())
        });
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    written(command)
}

/// Bytes that cannot be compressed.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        // Numerical Recipes' generator.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// A repository with some commits, at `place/repository`; returns the last one's name.
fn repository(place: &Path) -> String {
    let path = place.join("repository");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command
            .args(["-C", path.to_str().unwrap()])
            .args(["-c", "user.name=A", "-c", "user.email=a@b.example"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1");
        written(command)
    };
    fs::create_dir(&path).unwrap();
    git(&["init", "--quiet"]);
    for (number, length) in [10, 1_000_000, 2_000_000].into_iter().enumerate() {
        fs::write(path.join(format!("file{number}")), noise(length)).unwrap();
        git(&["add", "."]);
        git(&["commit", "--quiet", "--message", "more"]);
    }
    git(&["rev-parse", "HEAD"])
}

/// An ssh server on the host for the user of this test, with a separate home there. Returns the
/// command by which rsync connects.
fn ssh_server(net: &Net, place: &Path) -> (Server, String) {
    let path = |name: &str| place.join(name).to_str().unwrap().to_owned();
    for key in ["host", "own"] {
        let make = ["-t", "ed25519", "-f", &path(key)];
        run("dropbearkey", &make);
    }
    let own = path("own.openssh");
    run(
        "dropbearconvert",
        &["dropbear", "openssh", &path("own"), &own],
    );
    fs::write(path("own.pub"), run("ssh-keygen", &["-y", "-f", &own])).unwrap();
    let mut command = on_the_host(net, "sh");
    // The mount namespace is that of `ip netns exec`.
    let script = "cd \"$1\" && mount -t tmpfs -o mode=700 tmpfs /root && mkdir -m 700 /root/.ssh && \
                  cp own.pub /root/.ssh/authorized_keys && \
                  exec dropbear -F -E -s -m -r host -P pid -p \"$2\"";
    command
        .args(["-c", script, "sh"])
        .arg(place)
        .arg(format!("{HOST}:22"));
    let client = format!(
        "ssh -F /dev/null -i {own} -o BatchMode=yes -o StrictHostKeyChecking=no \
         -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    );
    (Server::start(net, command, 22), client)
}

/// Servers of git and ssh on the host, and their content.
struct Far {
    place: PathBuf,
    head: String,
    /// The command by which rsync connects.
    client: String,
    _servers: [Server; 2],
}

impl Far {
    /// None if a program is missing.
    fn new(net: &Net, place: &Path) -> Option<Self> {
        let programs = [
            ("git", "git"),
            ("ssh", "openssh-client"),
            ("rsync", "rsync"),
            ("dropbear", "dropbear-bin"),
        ];
        if !there(&programs) {
            return None;
        }
        let head = repository(place);
        // By its own name, or it would be a child of the started process.
        let daemon = format!("{}/git-daemon", run("git", &["--exec-path"]).trim_end());
        let mut daemon = on_the_host(net, &daemon);
        daemon
            .args(["--reuseaddr", "--export-all"])
            .arg(format!("--listen={HOST}"))
            .arg(format!("--base-path={}", place.display()))
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        let git = Server::start(net, daemon, 9418);
        let (ssh, client) = ssh_server(net, place);
        fs::create_dir_all(place.join("tree/below")).unwrap();
        for (name, length) in [("empty", 0), ("small", 17), ("below/large", 5_000_000)] {
            fs::write(place.join("tree").join(name), noise(length)).unwrap();
        }
        Some(Self {
            place: place.to_owned(),
            head,
            client,
            _servers: [git, ssh],
        })
    }

    /// A script that fetches and sends all of it, and prints [`Far::head`].
    fn script(&self) -> String {
        format!(
            "set -e; cd {}; export GIT_CONFIG_GLOBAL=/dev/null RSYNC_RSH='{}'\n\
             git clone --quiet git://{HOST}/repository clone\n\
             git -C clone fsck; git -C clone rev-parse HEAD\n\
             rsync --archive tree/ root@{HOST}:$PWD/there\n\
             rsync --archive root@{HOST}:$PWD/there/ back",
            self.place.display(),
            self.client
        )
    }

    /// Fails unless everything has arrived.
    fn check(&self) {
        for (one, other) in [("repository", "clone"), ("tree", "there"), ("tree", "back")] {
            let paths = [one, other].map(|name| self.place.join(name).display().to_string());
            run(
                "diff",
                &["--recursive", "--exclude=.git", &paths[0], &paths[1]],
            );
        }
    }
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn git_clones_and_rsync_goes_over_ssh_in_both_directions() {
    if !available() {
        return;
    }
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    let Some(far) = Far::new(&net, directory.path()) else {
        return;
    };
    let said = written(net.stack(&["--cc", "bbr"], &["sh", "-c", &far.script()]));
    assert_eq!(said, far.head);
    far.check();
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn an_ordinary_user_has_git_rsync_and_a_learner_of_his_own() {
    if !available() {
        return;
    }
    let account = Account::new();
    let place = account.path("home");
    fs::create_dir(&place).unwrap();
    let Some(far) = Far::new(&account.net, &place) else {
        return;
    };
    let user = USER.parse().unwrap();
    for path in [&place, &place.join("own.openssh")] {
        chown(path, Some(user), Some(user)).unwrap();
    }
    // ssh looks up the user.
    let known = fs::read_to_string("/etc/passwd").unwrap();
    let entry = format!(
        "{known}someone:x:{USER}:{USER}::{}:/bin/sh\n",
        place.display()
    );
    fs::write(account.path("passwd"), entry).unwrap();
    let before = format!(
        "mount --bind {} /etc/passwd; unset XDG_STATE_HOME; export HOME={};",
        account.path("passwd").display(),
        place.display()
    );
    let learning = |words: &[&str]| {
        let words = [&["--learn", "--", "sh", "-c"], words].concat();
        account.user_after(&before, &words)
    };
    written(account.root(&["setup", "--user", USER]));
    serve(&account.net);
    let upload = "curl -sS --header Expect: --upload-file tree/below/large";
    let script = format!(
        "{}; for n in 1 2 3; do {upload} http://{HOST}/; done",
        far.script()
    );
    assert_eq!(written(learning(&[&script])), far.head);
    far.check();
    let store = fs::metadata(place.join(".local/state/thalweg/stack.json")).unwrap();
    assert_eq!((store.uid(), store.mode() & 0o777), (user, 0o600));

    // In a new kernel with the records of the one before.
    let ask = format!(
        "{} --json hosts",
        account.command.with_file_name("thalweg").display()
    );
    let shown: Value = serde_json::from_str(&written(learning(&[&ask]))).unwrap();
    let host = &shown["hosts"][0];
    assert_eq!(host["address"], HOST, "{shown}");
    // Those of git and ssh pause too much.
    let scored: u64 = host["arms"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arm| arm["scored"].as_u64().unwrap())
        .sum();
    assert!(scored >= 1, "{shown}");
    written(account.root(&["remove", "--user", USER]));
    assert_eq!(account.net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn nginx_serves_at_a_published_port() {
    if !available() {
        return;
    }
    // Its package would start it on port 80, so the set-up only unpacks it.
    let unpacked = Path::new(laboratory()).with_file_name("../nginx/usr/sbin/nginx");
    let places = ["nginx", "/usr/sbin/nginx", unpacked.to_str().unwrap()];
    let program = places.into_iter().find(|program| {
        let version = Command::new(program)
            .arg("-v")
            .stderr(Stdio::null())
            .status();
        version.is_ok()
    });
    let Some(program) = program else {
        skip("no nginx (scripts/setup.sh)");
        return;
    };
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let content = noise(5_000_000);
    fs::create_dir(directory.path().join("www")).unwrap();
    fs::write(directory.path().join("www/file"), &content).unwrap();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {place}/{what};\n"))
        .concat();
    let configuration = format!(
        "user root;\nworker_processes 2;\npid {place}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n\
         sendfile on;\n{temporary}server {{\nlisten 80;\nroot {place}/www;\n}}\n}}\n"
    );
    let file = format!("{place}/nginx.conf");
    fs::write(&file, configuration).unwrap();
    // It listens when the first process has ended.
    let call = format!("{program} -e stderr -c {file}");
    let script = format!("{call} && echo Serving && read end; {call} -s stop");
    let child = serving(&net, &["--cc", "bbr", "--publish", "8080:80"], &script);
    for mut client in [on_the_host(&net, "curl"), net.on_the_machine("curl")] {
        client.args(["--silent", "--show-error", "--max-time", "20"]);
        client.arg(format!("http://{MACHINE}:8080/file"));
        let output = client.output().unwrap();
        assert!(output.stdout == content, "{:?}", output.stderr);
    }
    // This closes its input.
    let output = child.wait_with_output().unwrap();
    assert_eq!(net.leftovers(), Vec::<String>::new(), "{output:?}");
}
