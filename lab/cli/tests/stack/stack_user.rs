//! `thalweg-lab stack` as an ordinary user, on wires prepared by root.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use thalweg_link::tun;
use thalweg_process::Process;

use crate::stack::{HOST, HOST_V6, Net, answer_names, available, written};
use thalweg_testbed::place::{assert_code, said};
use thalweg_testbed::{copy_of_command, wait_for};

/// A user without an entry in passwd(5).
pub const USER: &str = "54321";

/// An ordinary user's environment: a command that others may read, a directory, and /dev/net/tun
/// with its usual mode.
pub struct Account {
    pub net: Net,
    directory: tempfile::TempDir,
    pub command: PathBuf,
}

impl Account {
    pub fn new() -> Self {
        Self::on(Net::new())
    }

    pub fn on(net: Net) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (path, mode) in [(directory.path(), 0o755), (net.temporary.path(), 0o1777)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let command = directory.path().join("thalweg-lab");
        copy_of_command(&command);
        let device = directory.path().join("tun");
        let status = Command::new("mknod")
            .args(["-m", "666"])
            .arg(&device)
            .args(["c", "10", "200"])
            .status();
        assert!(status.unwrap().success());
        Self {
            net,
            directory,
            command,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The command on the machine, by root.
    pub fn root(&self, words: &[&str]) -> Command {
        let mut command = self.net.on_the_machine(self.command.to_str().unwrap());
        command.arg("stack").args(words);
        command
    }

    /// The command on the machine, by the user; root runs `before` first.
    pub fn user_after(&self, before: &str, words: &[&str]) -> Command {
        let script = format!(
            "mount --bind \"$0\" /dev/net/tun && cd / && {before} exec setpriv --reuid {USER} \
             --regid {USER} --groups {USER},43210 \"$@\""
        );
        let mut command = self.net.on_the_machine("sh");
        command
            .args(["-c", &script])
            .arg(self.path("tun"))
            .arg(&self.command)
            .arg("stack")
            .args(words);
        command
    }

    fn user(&self, words: &[&str]) -> Command {
        self.user_after("", words)
    }
}

/// The lock files of the wires on the machine.
fn lock_files(net: &Net) -> Vec<PathBuf> {
    let namespace = net.within(&net.machine, || {
        fs::metadata("/proc/thread-self/ns/net").unwrap().ino()
    });
    let all = fs::read_dir("/run/thalweg-stack").unwrap();
    // Those of other tests may go meanwhile.
    let mut paths: Vec<PathBuf> = all.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.to_string_lossy().contains(&format!("/{namespace}-")));
    paths
}

fn one_line(mut command: Command, code: i32) -> String {
    let output = command.output().unwrap();
    assert_code(&output, code);
    let said = said(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_user_needs_no_root_once_it_was_prepared() {
    if !available() {
        return;
    }
    let account = Account::new();
    let net = &account.net;
    // A resolver that only the machine reaches.
    let place = PathBuf::from("/etc/netns").join(&net.machine);
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("resolv.conf"), "nameserver 127.0.0.53\n").unwrap();
    let resolver = net.within(&net.machine, || {
        UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 53), 53)).unwrap()
    });
    thread::spawn(move || answer_names(&resolver));
    let hide = "upstream=/run/systemd/resolve/resolv.conf; \
                [ ! -e $upstream ] || mount --bind /etc/resolv.conf $upstream;";
    let words = written(account.root(&["setup", "--user", USER]));
    assert!(words.starts_with("54321 can run 4 stacks at a time without root"));
    // A second time changes nothing.
    let addresses = || {
        let mut command = net.on_the_machine("ip");
        command.args(["-brief", "address"]);
        written(command)
    };
    let before = addresses();
    written(account.root(&["setup", "--user", USER]));
    assert_eq!(addresses(), before);

    // A file of root's own, one of the group's, and a shell that becomes root inside.
    for (name, mode) in [("secret", 0o600), ("shared", 0o640)] {
        let path = account.path(name);
        fs::write(&path, format!("{name}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::chown(account.path("shared"), None, Some(43210)).unwrap();
    let shell = account.path("shell");
    fs::copy("/bin/bash", &shell).unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o4755)).unwrap();
    let mut servers: Vec<_> = [HOST, HOST_V6]
        .iter()
        .map(|address| {
            let mut server = Command::new("ip");
            server.args(["netns", "exec", &net.host, "python3", "-u", "-m"]);
            server.args(["http.server", "--bind", address]);
            server.arg("80").current_dir(account.directory.path());
            let mut server = server
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut byte = [0];
            // It has reported that it serves.
            std::io::Read::read_exact(server.stdout.as_mut().unwrap(), &mut byte).unwrap();
            server
        })
        .collect();
    fs::write(account.path("file"), "of the host\n").unwrap();
    let script = format!(
        "id -u; id -G; cat /proc/sys/net/ipv4/tcp_congestion_control; \
         for host in {HOST} '[{HOST_V6}]' far.example; do curl -sS -m 20 http://$host/file; done; \
         cat shared; ./shell -p -c '\
         id -u; cat secret; echo x >>secret; echo x >new; rm -f file; chmod 777 .'; exit 7"
    );
    let mut command = account.user_after(
        &format!("{hide} cd {};", account.directory.path().display()),
        &["--cc", "bbr", "--", "sh", "-c", &script],
    );
    let output = command.output().unwrap();
    fs::remove_dir_all(place).unwrap();
    // Fails if other files are there.
    let _ = fs::remove_dir("/etc/netns");
    for server in &mut servers {
        server.kill().unwrap();
        server.wait().unwrap();
    }
    let host = "of the host\n".repeat(3);
    // Root inside is the user on the machine.
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("{USER}\n{USER} 43210\nbbr\n{host}shared\n0\n"),
        "{}",
        said(&output)
    );
    assert_code(&output, 7);
    assert_eq!(said(&output).lines().count(), 5, "{}", said(&output));
    assert_eq!(
        fs::read_to_string(account.path("secret")).unwrap(),
        "secret\n"
    );
    assert!(account.path("file").exists() && !account.path("new").exists());
    let mode = fs::metadata(account.directory.path())
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o7777, 0o755);

    written(account.root(&["remove", "--user", USER]));
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_is_prepared_is_used_by_one_stack_each_and_stays() {
    if !available() {
        return;
    }
    let account = Account::new();
    let net = &account.net;
    written(account.root(&["setup", "--user", USER]));
    let start = || {
        let script = "ip -brief -4 address show dev vec0; exec sleep 1000";
        let mut command = account.user(&["--", "sh", "-c", script]);
        // It ends with this test, whatever comes.
        let mut child = Process::spawn(command.stdout(Stdio::piped())).unwrap();
        let mut line = String::new();
        let output = child.child_mut().stdout.take().unwrap();
        let mut output = std::io::BufReader::new(output);
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        (child, line)
    };
    let (mut first, address) = start();
    let (second, other) = start();
    assert_ne!(address, other);
    let text = one_line(account.root(&["remove", "--user", USER]), 2);
    assert!(
        text.contains("a stack of the user 54321 runs on thalweg-s") && text.contains("end it"),
        "{text}"
    );
    let locks = || lock_files(net);
    // No other user can use a wire.
    assert_eq!(locks().len(), 4);
    for path in locks() {
        let found = fs::metadata(&path).unwrap();
        assert_eq!(
            (found.mode() & 0o777, found.uid().to_string()),
            (0o600, USER.to_owned())
        );
    }
    let place = fs::metadata("/run/thalweg-stack").unwrap();
    assert_eq!((place.mode() & 0o777, place.uid()), (0o755, 0));
    // Two more of the user's.
    let others: Vec<_> = locks()
        .iter()
        .map(|path| fs::File::open(path).unwrap())
        .filter_map(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok())
        .collect();
    assert_eq!(others.len(), 2);
    let text = one_line(account.user(&["--", "true"]), 2);
    assert!(
        text.contains("the 4 stacks that are prepared for this user run already: end one"),
        "{text}"
    );
    drop(others);
    // What another program reads (or a process of a kernel that is still ending) is passed over.
    let attach = |name: &String| {
        net.within(&net.machine, || tun::attach_as(name, libc::IFF_TAP))
            .ok()
    };
    let mut names: Vec<String> = locks()
        .iter()
        .filter_map(|path| Some(path.to_str()?.split_once("-thalweg")?.1.to_owned()))
        .map(|end| format!("thalweg{end}"))
        .collect();
    names.sort_unstable();
    let last = names.pop().unwrap();
    let read: Vec<_> = names.iter().filter_map(attach).collect();
    assert_eq!(read.len(), 1, "two have a kernel: {names:?}");
    written(account.user(&["--", "true"]));
    // The kernel that has just run on it may be still ending.
    let read = [read, vec![wait_for("the device", || attach(&last))]];
    let text = one_line(account.user(&["--", "true"]), 2);
    assert!(
        text.contains("another program has the TAP device"),
        "{text}"
    );
    drop(read);

    let running = || {
        let mut left = net.leftovers();
        left.retain(|line| line.contains("uml_dir"));
        left.len()
    };
    assert!(running() >= 2);
    let first = first.child_mut();
    kill(Pid::from_raw(first.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(143));
    drop(second);
    wait_for("the kernels' end", || (running() == 0).then_some(()));
    wait_for("the directories' removal", || {
        let mut left = fs::read_dir(net.temporary.path()).unwrap();
        left.next().is_none().then_some(())
    });
    written(account.root(&["remove", "--user", USER]));
    assert_eq!(net.leftovers(), Vec::<String>::new());
    assert_eq!(locks(), Vec::<PathBuf>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn what_cannot_be_prepared_or_used_is_said_in_one_line() {
    if !available() {
        return;
    }
    let account = Account::new();
    let net = &account.net;
    let root = |words: &[&str]| account.root(words);
    let user = |words: &[&str]| account.user(words);
    for (command, code, words) in [
        (
            root(&["setup", "--user", "no such"]),
            2,
            "this machine has no user \"no such\": expected a name",
        ),
        (
            root(&["setup", "--user", "root"]),
            2,
            "expected a user other than root",
        ),
        (
            root(&["remove", "--user", USER]),
            2,
            "nothing is prepared for the user 54321",
        ),
        (
            user(&["setup", "--user", USER]),
            3,
            "only root prepares wires",
        ),
        (
            user(&["--", "true"]),
            3,
            "run it as root (sudo thalweg-lab stack …), or have root prepare wires for this user \
             once (sudo thalweg-lab stack setup --user NAME)",
        ),
    ] {
        let said = one_line(command, code);
        assert!(said.contains(words), "{said}");
        assert_eq!(net.leftovers(), Vec::<String>::new());
    }
    written(root(&["setup", "--user", USER]));
    let text = one_line(user(&["--publish", "8080:80", "--", "true"]), 3);
    assert!(text.contains("this user may not publish ports"), "{text}");
    let text = one_line(
        account.user_after("chmod 600 /dev/net/tun;", &["--", "true"]),
        3,
    );
    assert!(text.contains("chmod 0666 /dev/net/tun"), "{text}");
    chmod(&account.path("tun"), 0o666);
    let text = one_line(account.user_after(&forbid(), &["--", "true"]), 3);
    assert!(
        text.contains("sysctl user.max_user_namespaces=10000"),
        "{text}"
    );
    written(root(&["remove", "--user", USER]));
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn removal_that_failed_half_way_is_resumed() {
    if !available() {
        return;
    }
    let account = Account::new();
    let net = &account.net;
    written(account.root(&["setup", "--user", USER]));
    let script = "mount --bind /bin/false \"$(command -v nft)\" && exec \"$@\"";
    for _ in 0..4 {
        let mut command = net.on_the_machine("sh");
        command.args(["-c", script, "sh"]).arg(&account.command);
        command.args(["stack", "remove", "--user", USER]);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        assert!(said(&output).contains("nft list tables"), "{output:?}");
    }
    written(account.root(&["remove", "--user", USER]));
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn wires_without_lock_files_are_made_anew_or_removed() {
    if !available() {
        return;
    }
    let account = Account::new();
    let net = &account.net;
    let lose_locks = || {
        for path in lock_files(net) {
            fs::remove_file(path).unwrap();
        }
    };
    written(account.root(&["setup", "--user", USER]));
    lose_locks();
    let text = one_line(account.user(&["--", "true"]), 3);
    assert!(
        text.contains("has no lock file in /run/thalweg-stack") && text.contains("stack setup"),
        "{text}"
    );
    written(account.root(&["setup", "--user", USER]));
    assert_eq!(lock_files(net).len(), 4);
    lose_locks();
    written(account.root(&["remove", "--user", USER]));
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn two_setups_at_once_leave_whole_wires() {
    if !available() {
        return;
    }
    let account = Account::new();
    let both = [(); 2].map(|()| {
        let mut command = account.root(&["setup", "--user", USER]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    for setup in both {
        assert_code(&setup.wait_with_output().unwrap(), 0);
    }
    assert_eq!(lock_files(&account.net).len(), 4);
    written(account.root(&["remove", "--user", USER]));
    assert_eq!(account.net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn remove_all_removes_the_wires_of_all_users() {
    if !available() {
        return;
    }
    let account = Account::new();
    let net = &account.net;
    for user in [USER, "54322"] {
        written(account.root(&["setup", "--user", user]));
    }
    let mut command = net.on_the_machine("env");
    command.arg(&account.command).arg("remove-all");
    written(command);
    assert_eq!(net.leftovers(), Vec::<String>::new());
}

/// Moves the user into a user namespace that allows no nested ones.
fn forbid() -> String {
    format!(
        "exec setpriv --reuid {USER} --regid {USER} --clear-groups \
         unshare --user --map-current-user --keep-caps sh -c \
         'echo 0 >/proc/sys/user/max_user_namespaces && \
         exec setpriv --inh-caps -all --ambient-caps -all \"$@\"' sh \"$@\";"
    )
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Reports of iperf3 in JSON, one a line, from a client inside.
const MEASURE: &str = "id -u; for far in $THALWEG_LINK_FAR $THALWEG_LINK_FAR6; do \
     iperf3 -J -n 500K -c $far | tr -d '\\n'; echo; done; cat mine; echo written >>mine; exit 7";

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_path_to_a_far_end_needs_no_root_and_nothing_prepared() {
    if !available() {
        return;
    }
    let account = Account::new();
    let mine = account.path("mine");
    fs::write(&mine, "of the user\n").unwrap();
    std::os::unix::fs::chown(&mine, Some(54321), None).unwrap();
    chmod(&mine, 0o600);
    let enter = format!("cd {};", account.directory.path().display());
    let options = [
        "--cc",
        "bbr",
        "--wire",
        "link:rate=50mbit,delay=5ms",
        "--far",
        "iperf3 -s >/dev/null",
        "--far-port",
        "5201",
        "--",
        "sh",
        "-c",
        MEASURE,
    ];
    let output = account.user_after(&enter, &options).output().unwrap();
    assert_code(&output, 7);
    let lines: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    assert_eq!(lines.len(), 4, "{lines:?} {}", said(&output));
    assert_eq!((&*lines[0], &*lines[3]), (USER, "of the user"));
    for line in &lines[1..3] {
        let report: serde_json::Value = serde_json::from_str(line).unwrap();
        let end = &report["end"];
        assert_eq!(end["sender_tcp_congestion"], "bbr", "{end}");
        // Twice 5 ms.
        let rtt_us = end["streams"][0]["sender"]["min_rtt"].as_u64().unwrap();
        assert!(rtt_us >= 10_000, "{end}");
    }
    assert_eq!(fs::read_to_string(&mine).unwrap(), "of the user\nwritten\n");
    let table = said(&output);
    // The far command may print its own last message there.
    assert!(table.contains("thalweg-lab link  "), "{table}");
    assert_eq!(account.net.leftovers(), Vec::<String>::new());
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_path_that_cannot_be_is_said_in_one_line() {
    if !available() {
        return;
    }
    let account = Account::new();
    for (spec, words) in [
        ("veth", "expected link:KEY=VALUE,..., as link:rate=100mbit"),
        (
            "link:rate",
            "expected KEY=VALUE, as delay=20ms, found \"rate\"",
        ),
        ("link:rate=fast", "invalid value 'fast' for '--rate <RATE>'"),
        (
            "link:speed=1",
            "found the unknown key \"speed\", expected one of delay, ",
        ),
    ] {
        let output = account
            .user(&["--wire", spec, "--", "true"])
            .output()
            .unwrap();
        assert_code(&output, 2);
        let said = said(&output);
        let first = said.lines().next().unwrap();
        assert!(
            first.contains("--wire <link:SPEC>") && first.contains(words),
            "{said}"
        );
    }
    let jitter = ["--wire", "link:jitter=5ms", "--", "true"];
    let text = one_line(account.user(&jitter), 2);
    assert!(
        text.contains("--jitter 5ms is more than --delay 0ms"),
        "{text}"
    );
    let forbidden = account.user_after(&forbid(), &["--wire", "link:", "--", "true"]);
    let text = one_line(forbidden, 3);
    assert!(
        text.contains("sysctl user.max_user_namespaces=10000"),
        "{text}"
    );
    assert_eq!(account.net.leftovers(), Vec::<String>::new());
}
