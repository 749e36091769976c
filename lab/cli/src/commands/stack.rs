//! `thalweg-lab stack`.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Arg, Args, CommandFactory as _, Parser, Subcommand};
use serde_json::Value;
use thalweg_learner::{HOSTS_FORMAT, HOSTS_VERSION};
use thalweg_link::Settings;
use thalweg_policy::Policy;
use thalweg_stack::{Error, Publish, Rules, Store};
use thalweg_terminal::kinds::{self, Kind};
use thalweg_terminal::{Failure, Format, output, whole_number};
use thalweg_units::file::{self, MAX_FILE_BYTES};
use thalweg_units::program::find_agent;
use thalweg_units::reader::quote_piece;
use thalweg_units::{Faults, Size, nearest_word};

use crate::commands::link::{self, PathOptions};

/// The command, and the kernel that it runs on.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Options {
    /// Congestion control of the kernel, as bbr. Default: the kernel's, mostly cubic.
    #[arg(long, value_name = "NAME", value_parser = parse_module_name)]
    cc: Option<String>,
    /// Queueing discipline of its interface, as fq. Default: the kernel's.
    #[arg(long, value_name = "NAME", value_parser = parse_module_name)]
    qdisc: Option<String>,
    /// A setting of the kernel, as net.ipv4.tcp_ecn=1; repeatable.
    #[arg(long = "sysctl", value_name = "KEY=VALUE", value_parser = parse_setting)]
    sysctls: Vec<(String, String)>,
    /// A TCP port of this machine, and the port inside that it leads to, as 8080:80; with ADDR
    /// (IPv6 in brackets) at this address only; repeatable.
    #[arg(long = "publish", value_name = "[ADDR:]PORT:PORT")]
    publish: Vec<Publish>,
    /// Memory of the kernel, 128mib to 4000mb. Default: 1 GiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,
    /// A user-mode kernel, as of `thalweg-lab build-kernel`. Default: that of Debian's package
    /// user-mode-linux.
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Seconds that the kernel may take to boot. Default: 300.
    #[arg(long, value_name = "SECONDS", value_parser = whole_number::<u64>(1..=3600))]
    boot_limit: Option<u64>,
    /// Have an agent choose congestion controls for the command's connections, and learn for the
    /// next call.
    #[arg(long)]
    learn: bool,
    /// Learned records, as `thalweg export` writes them; for one call at a time. Default:
    /// $XDG_STATE_HOME/thalweg/stack.json, or ~/.local/state/thalweg/stack.json.
    #[arg(long, value_name = "FILE", requires = "learn")]
    store: Option<PathBuf>,
    /// Apply a policy to the command's connections.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A path to a far end instead of this machine's network: link:KEY=VALUE,... with the options
    /// of `thalweg-lab link`, as link:rate=100mbit,delay=20ms.
    #[arg(long, value_name = "link:SPEC", value_parser = wire_settings, conflicts_with = "publish")]
    wire: Option<Settings>,
    /// A line for `sh -c` at the far end of --wire; starts first, ends last.
    #[arg(long, value_name = "LINE", requires = "wire")]
    far: Option<OsString>,
    /// Start the command once this TCP or UDP port is open at the far end, within 10 s. Default: at
    /// once.
    #[arg(long, value_name = "PORT", requires = "far", value_parser = whole_number(1..=u16::MAX))]
    far_port: Option<u16>,
    /// The command to run, with its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(subcommand)]
    what: Option<StackCommand>,
}

#[derive(Debug, Subcommand)]
enum StackCommand {
    /// Prepare the network, as root: the user then runs stacks without root, four at a time, until
    /// `remove` or a restart of the machine.
    Setup {
        /// The user, by name or number.
        #[arg(long, value_name = "NAME")]
        user: String,
    },
    /// Remove what `setup` prepared for a user.
    Remove {
        /// The user, by name or number.
        #[arg(long, value_name = "NAME")]
        user: String,
    },
    /// The first process in the kernel.
    #[command(hide = true)]
    Guest {
        /// The directory of whoever started it.
        #[arg(value_name = "DIR")]
        work: PathBuf,
    },
    /// An end of a path of the laboratory.
    #[command(hide = true)]
    End {
        /// Description of the end, JSON.
        #[arg(value_name = "END")]
        end: String,
        /// The command to run, with its arguments.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
}

/// A valid name for a module.
fn parse_module_name(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !text.is_empty() && text.bytes().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("expected a name of letters, digits, - and _".to_owned())
    }
}

/// The words of `thalweg-lab link`, as one.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Words {
    #[command(flatten)]
    path: PathOptions,
}

fn wire_settings(text: &str) -> Result<Settings, String> {
    let Some(list) = text.strip_prefix("link:") else {
        return Err("expected link:KEY=VALUE,..., as link:rate=100mbit,delay=20ms".to_owned());
    };
    let options = Words::command();
    let keys: Vec<&str> = options.get_arguments().filter_map(Arg::get_long).collect();
    let mut words: Vec<String> = Vec::new();
    for part in list
        .split(',')
        .filter(|it| !list.is_empty() || !it.is_empty())
    {
        match (part.split_once('='), words.last_mut()) {
            (Some((key, value)), _) if keys.contains(&key) => {
                words.push(format!("--{key}={value}"));
            }
            (Some((key, _)), _) => {
                let near = nearest_word(key, keys.iter().copied());
                return Err(format!(
                    "found the unknown key {}, expected one of {}{}",
                    quote_piece(key),
                    keys.join(", "),
                    near.map_or_else(String::new, |near| format!("; perhaps `{near}`"))
                ));
            }
            // The second file of a trace.
            (None, Some(last)) if last.starts_with("--trace=") => *last += &format!(",{part}"),
            (None, _) => {
                return Err(format!("expected KEY=VALUE, as delay=20ms, found {part:?}"));
            }
        }
    }
    let parsed = Words::try_parse_from(&words).map_err(|error| {
        let said = error.to_string();
        let first = said.lines().next().unwrap_or_default();
        first.strip_prefix("error: ").unwrap_or(first).to_owned()
    });
    Ok(parsed?.path.link_settings())
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if key.contains('.') && !key.contains(['/', ' ']) => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("expected KEY=VALUE, as net.ipv4.tcp_ecn=1".to_owned()),
    }
}

/// The file of the learned records. A directory is created for the default file.
fn open_store(options: &Options) -> Result<Store> {
    let file = match &options.store {
        Some(file) => file.clone(),
        None => {
            let directory = state_directory()?.join("thalweg");
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
            directory.join("stack.json")
        }
    };
    Ok(Store::lock_and_read(&file, check_records)?)
}

/// The fault of a document that is certainly none of `thalweg export`; the agent checks the rest.
fn check_records(bytes: &[u8]) -> Result<(), String> {
    let document: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if document["format"] != HOSTS_FORMAT {
        let found = &document["format"];
        return Err(format!("format: found {found}, expected {HOSTS_FORMAT:?}"));
    }
    let found = &document["version"];
    let is_known = |version| (1..=u64::from(HOSTS_VERSION)).contains(&version);
    match found.as_u64().is_some_and(is_known) {
        true => Ok(()),
        false => Err(format!(
            "version: found {found}, this version of Thalweg reads 1 to {HOSTS_VERSION}"
        )),
    }
}

/// Directory for the state of this user's programs (XDG Base Directory Specification).
fn state_directory() -> Result<PathBuf> {
    let absolute = |name| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
        (Some(state), _) => Ok(state),
        (None, Some(home)) => Ok(home.join(".local/state")),
        (None, None) => bail!("neither XDG_STATE_HOME nor HOME is set: name a file with --store"),
    }
}

fn read_rules(file: &Path) -> Result<Rules> {
    kinds::expect_kind(file, Kind::Policy)?;
    let text = file::read_bytes(file, MAX_FILE_BYTES)?;
    let first = |faults: Faults| anyhow!("{}", faults.first_fault("thalweg policy check"));
    let policy = Policy::parse(&text, file).map_err(first)?;
    policy.compile().map_err(first)?;
    Ok(Rules::new(file, text, &policy))
}

/// Runs a command on a kernel of its own, and returns its exit code.
pub fn run(format: &Format, options: &Options) -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    match &options.what {
        Some(StackCommand::Guest { work }) => return Ok(thalweg_stack::guest(work)?),
        Some(StackCommand::End { end, command }) => {
            let end = serde_json::from_str(end).context("the end of a path")?;
            return exit_with(
                thalweg_stack::run_end(&end, command, &program).map_err(classify_error)?,
            );
        }
        Some(StackCommand::Setup { user }) => return prepare_wires(user),
        Some(StackCommand::Remove { user }) => {
            return thalweg_stack::remove_wires(user).map_err(classify_error);
        }
        None => {}
    }
    let store = options.learn.then(|| open_store(options)).transpose()?;
    let task = thalweg_stack::Options {
        command: options.command.clone(),
        congestion_control: options.cc.clone(),
        qdisc: options.qdisc.clone(),
        sysctls: options.sysctls.clone(),
        publish: options.publish.clone(),
        memory: options.memory,
        kernel: options.kernel.clone(),
        boot_limit: options.boot_limit.map(Duration::from_secs),
        store: store.map(Arc::new),
        path: options
            .wire
            .clone()
            .map(|settings| thalweg_stack::Emulated {
                settings,
                far: options.far.clone(),
                far_port: options.far_port,
            }),
        rules: options.policy.as_deref().map(read_rules).transpose()?,
        program,
        agent: find_agent(),
    };
    let finished = thalweg_stack::run_program(&task).map_err(classify_error)?;
    if let Some(report) = &finished.report {
        // If standard error is closed, nobody can be told.
        drop(std::io::stderr().write_all(link::report_text(format, report)?.as_bytes()));
    }
    exit_with(finished.exit)
}

/// Gives an error its documented exit code, the same as for a link.
fn classify_error(error: Error) -> anyhow::Error {
    link::classify_error(match error {
        Error::Link(error) => error,
        Error::Options(why) => thalweg_link::Error::Options(why),
        Error::Missing(why) => thalweg_link::Error::Missing(why),
        other => return other.into(),
    })
}

fn exit_with(code: u8) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Failure::Silent(code).into()),
    }
}

fn prepare_wires(user: &str) -> Result<()> {
    let count = thalweg_stack::prepare_wires(user).map_err(classify_error)?;
    output::print(&format!(
        "{user} can run {count} stacks at a time without root, until `thalweg-lab stack remove --user \
         {user}` or until this machine is restarted\n"
    ))
}
