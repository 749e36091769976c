//! The traffic server of a pair, and bulk traffic by iperf3: one client per connection.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use serde::Deserialize;
use thalweg_process::Process;
use thalweg_process::interrupt::{self, OnSignal};

use crate::error::Error;
use crate::host::cgroup::Cgroup;
use crate::host::{Pair, Remote, Side};
use crate::outcome::Connection;
use crate::stack_endpoints;
use crate::units::Seconds;
use crate::worker;

/// Time within which a server must listen.
const START: Duration = Duration::from_secs(10);
/// The line that iperf3 prints after listen(2). A connection to find out would be one more for an
/// agent to learn from.
const ANNOUNCES: &str = "Server listening";
/// Sampling interval of iperf3, seconds.
const SAMPLE_S: &str = "0.1";
/// Time that a client may take beyond its sending time.
const GRACE: Duration = Duration::from_secs(20);

/// A listening server; dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Server {
    process: Process,
    /// Lines of output, not yet read.
    lines: mpsc::Receiver<String>,
    /// The line that it prints before each client; none: it takes several clients.
    announces: Option<&'static str>,
    /// Whether it has printed that line since the last client.
    ready: bool,
    /// The cgroup of its kernel, if that is a stack's. It is dropped after the process.
    stack: Option<Cgroup>,
}

impl Server {
    /// Starts iperf3 on a server and waits until it listens.
    pub(crate) fn start_iperf3(
        pair: &Pair,
        remote: &Remote,
        mode: &str,
        port: u16,
    ) -> Result<Self, Error> {
        let mut command = pair.command_on(remote, "iperf3")?;
        command.args(iperf3_server(remote, port));
        let mut server = Self::start_server(command, ANNOUNCES, mode, START)?;
        server.announces = Some(ANNOUNCES);
        Ok(server)
    }

    /// Starts iperf3 on a stack by the given command.
    pub(crate) fn on_stack(command: Command, cgroup: Cgroup, mode: &str) -> Result<Self, Error> {
        let mut server = Self::start_server(command, ANNOUNCES, mode, stack_endpoints::START)?;
        server.announces = Some(ANNOUNCES);
        server.stack = Some(cgroup);
        Ok(server)
    }

    /// Starts the worker on a server and waits until it listens.
    pub(crate) fn start_worker(
        pair: &Pair,
        remote: &Remote,
        mode: &str,
        port: u16,
        program: &Path,
    ) -> Result<Self, Error> {
        let address = SocketAddr::new(remote.listen_address(), port);
        let mut command = pair.command_on(remote, &program.to_string_lossy())?;
        command.args(["worker", "serve", &address.to_string()]);
        Self::start_server(command, worker::LISTENING, mode, START)
    }

    pub(crate) fn start_server(
        mut command: Command,
        listening: &str,
        mode: &str,
        patience: Duration,
    ) -> Result<Self, Error> {
        let fault = |why: String| Error::Server {
            mode: mode.to_owned(),
            why,
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn_tied(&mut command)?;
        let (sender, lines) = mpsc::channel();
        let child = process.child_mut();
        let outputs: [Option<Box<dyn std::io::Read + Send>>; 2] = [
            child.stdout.take().map(|output| Box::new(output) as _),
            child.stderr.take().map(|output| Box::new(output) as _),
        ];
        for output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            // Reads on to the end; else the server would block on a full pipe.
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        drop(sender);
        if await_line(&lines, listening, Instant::now() + patience)? {
            return Ok(Self {
                process,
                lines,
                announces: None,
                ready: true,
                stack: None,
            });
        }
        process.kill();
        let said: Vec<String> = lines.try_iter().collect();
        Err(fault(if said.is_empty() {
            "it said nothing".into()
        } else {
            said.join("; ")
        }))
    }

    /// Waits until the server can take a client, and counts that client as come. False if the
    /// server has ended or hangs on its last client.
    pub(crate) fn await_turn(&mut self) -> Result<bool, Error> {
        if self.has_ended()? {
            return Ok(false);
        }
        let Some(text) = self.announces else {
            return Ok(true);
        };
        let ready = self.ready || await_line(&self.lines, text, Instant::now() + START)?;
        self.ready = false;
        Ok(ready)
    }

    /// Ends the server and frees its port.
    pub(crate) fn stop_server(&mut self) {
        if self.stack.is_some() {
            // A stack has a directory to remove.
            self.process.terminate(stack_endpoints::STOP);
        }
        self.process.kill();
    }

    /// Processor time of its stack, seconds; none if it runs on no stack.
    pub(crate) fn stack_cpu_s(&self) -> Result<Option<f64>, Error> {
        self.stack.as_ref().map(Cgroup::cpu_s).transpose()
    }

    /// Whether it has ended.
    fn has_ended(&mut self) -> Result<bool, Error> {
        Ok(self.process.exit_status()?.is_some())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_server();
    }
}

/// Arguments of an iperf3 server.
pub(crate) fn iperf3_server(remote: &Remote, port: u16) -> [String; 6] {
    let words = ["--server", "--forceflush", "--port", "", "--bind", ""];
    let mut words = words.map(str::to_owned);
    words[3] = port.to_string();
    words[5] = remote.first_address().to_string();
    words
}

/// Waits for a line that contains the text, until the output ends or the deadline passes.
fn await_line(
    lines: &mpsc::Receiver<String>,
    text: &str,
    deadline: Instant,
) -> Result<bool, Error> {
    loop {
        interrupt::check_interrupt()?;
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left.min(Duration::from_millis(100))) {
            Ok(line) if line.contains(text) => return Ok(true),
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Timeout) if !left.is_zero() => {}
            Err(_) => return Ok(false),
        }
    }
}

/// An action during a client's sending.
pub(crate) struct Pause<'a> {
    /// Time after the client's start.
    pub(crate) after: Duration,
    /// Whether it is of no use once the client has ended.
    pub(crate) meanwhile: bool,
    pub(crate) act: Box<dyn Fn() -> Result<(), Error> + Send + 'a>,
}

/// Waits for a client until the deadline and carries out the pauses meanwhile, in order. If the
/// client ends early, the others follow at once, but for those that are of no use then.
pub(crate) fn wait_for_client(
    process: &mut Process,
    started: Instant,
    deadline: Instant,
    pauses: &[Pause<'_>],
) -> Result<Option<ExitStatus>, Error> {
    for pause in pauses {
        let ended = process.wait_until(started + pause.after, OnSignal::Fail)?;
        if ended.is_none() || !pause.meanwhile {
            (pause.act)()?;
        }
    }
    Ok(process.wait_until(deadline, OnSignal::Fail)?)
}

/// One connection of iperf3.
pub(crate) struct Bulk<'a> {
    pub(crate) server: SocketAddr,
    /// Counted from 0.
    pub(crate) round: u32,
    /// For how long it sends.
    pub(crate) duration: Seconds,
    /// The congestion control that the application sets; none: the system's.
    pub(crate) cc: Option<&'a str>,
}

/// Sends over one connection for the given time, from the pair's client or from a stack, and keeps
/// iperf3's JSON in a file. A connection that fails or hangs is a result, not an error.
///
/// # Errors
/// iperf3 cannot be started, or SIGINT or SIGTERM came.
pub(crate) fn transfer_bulk(
    pair: &Pair,
    sender: Option<&Mutex<stack_endpoints::Sender>>,
    bulk: &Bulk<'_>,
    raw: &Path,
    pauses: &[Pause<'_>],
) -> Result<Connection, Error> {
    let Bulk {
        server,
        round,
        duration,
        cc,
    } = *bulk;
    let output = File::create(raw).map_err(Error::io("cannot create", raw))?;
    let arguments = [
        ["--json", "--client", &server.ip().to_string()],
        ["--port", &server.port().to_string(), "--time"],
        [&duration.get().to_string(), "--interval", SAMPLE_S],
    ];
    let congestion = cc.map(|cc| ["--congestion", cc]);
    let arguments = [
        arguments.as_flattened(),
        congestion.as_slice().as_flattened(),
    ]
    .concat();
    let started = Instant::now();
    let allowed = duration.duration() + GRACE;
    let deadline = started + allowed;
    let ended = match sender {
        Some(sender) => {
            let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            let done = sender.run_program("iperf3", &arguments, started, deadline, pauses)?;
            if let Some(done) = &done {
                fs::write(raw, &done.output).map_err(Error::io("cannot write", raw))?;
            }
            done.map(|done| done.ended)
        }
        None => {
            let mut command = pair.command_in(Side::Client, "iperf3")?;
            command
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(output)
                .stderr(Stdio::null());
            let mut process = Process::spawn_tied(&mut command)?;
            let status = wait_for_client(&mut process, started, deadline, pauses)?;
            if status.is_none() {
                process.kill();
            }
            status.map(|status| match status.success() {
                true => Ok(()),
                false => Err(format!("iperf3 ended with {status}")),
            })
        }
    };
    let wall_s = started.elapsed().as_secs_f64();
    let text = fs::read_to_string(raw).map_err(Error::io("cannot read", raw))?;
    let mut connection = match ended {
        None => failed_connection(format!("killed: not done after {} s", allowed.as_secs())),
        Some(ended) => match (parse_iperf3(&text), ended) {
            (Ok(connection), Ok(())) => connection,
            // iperf3's message says more than its exit status.
            (Err(why), Err(_)) if !text.is_empty() => failed_connection(why),
            (Err(why), Ok(())) | (_, Err(why)) => failed_connection(why),
        },
    };
    connection.round = round;
    connection.wall_s = wall_s;
    let mut round_trips = pair.take_round_trips(server.ip())?;
    connection.rtt_us = data_port(&text)
        .map(|port| round_trips.take_connection(server.ip(), port))
        .unwrap_or_default();
    Ok(connection)
}

/// The client's port of the data connection, not of the control connection.
fn data_port(text: &str) -> Option<u16> {
    let report: Report = serde_json::from_str(text).ok()?;
    Some(report.start.connected.first()?.local_port)
}

fn failed_connection(why: String) -> Connection {
    Connection {
        error: Some(why),
        ..Connection::default()
    }
}

#[derive(Deserialize)]
struct Report {
    error: Option<String>,
    #[serde(default)]
    start: Start,
    #[serde(default)]
    intervals: Vec<Interval>,
    #[serde(default)]
    end: End,
}

#[derive(Deserialize, Default)]
struct Start {
    tcp_mss_default: Option<u64>,
    #[serde(default)]
    connected: Vec<Connected>,
}

#[derive(Deserialize)]
struct Connected {
    local_port: u16,
}

#[derive(Deserialize)]
struct Interval {
    #[serde(default)]
    streams: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    rtt: Option<u32>,
}

#[derive(Deserialize, Default)]
struct End {
    sum_sent: Option<SumSent>,
    sum_received: Option<SumReceived>,
    sender_tcp_congestion: Option<String>,
    #[serde(default)]
    streams: Vec<Stream>,
}

#[derive(Deserialize)]
struct SumSent {
    bytes: Option<u64>,
    retransmits: Option<u64>,
}

#[derive(Deserialize)]
struct SumReceived {
    bits_per_second: f64,
}

#[derive(Deserialize)]
struct Stream {
    sender: Option<Sender>,
}

#[derive(Deserialize)]
struct Sender {
    mean_rtt: Option<f64>,
    min_rtt: Option<f64>,
}

/// iperf3's report of a connection, or why it failed.
fn parse_iperf3(text: &str) -> Result<Connection, String> {
    let report: Report =
        serde_json::from_str(text).map_err(|error| format!("iperf3's output: {error}"))?;
    if let Some(error) = report.error {
        return Err(error);
    }
    let end = report.end;
    let received = end.sum_received.ok_or("iperf3 reports nothing received")?;
    let sent = end.sum_sent.as_ref();
    let retransmits = sent.and_then(|sent| sent.retransmits).unwrap_or(0);
    // iperf3 counts bytes given to TCP; retransmitted segments come on top.
    let sent_segments = match (
        sent.and_then(|sent| sent.bytes),
        report.start.tcp_mss_default,
    ) {
        (Some(bytes), Some(mss)) if mss > 0 => Some(bytes.div_ceil(mss) + retransmits),
        _ => None,
    };
    let sender = end
        .streams
        .first()
        .and_then(|stream| stream.sender.as_ref());
    Ok(Connection {
        goodput_bps: received.bits_per_second,
        retransmits,
        sent_segments,
        arm: end.sender_tcp_congestion.unwrap_or_default(),
        mean_rtt_us: sender.and_then(|sender| sender.mean_rtt),
        min_rtt_us: sender.and_then(|sender| sender.min_rtt),
        srtt_us: report
            .intervals
            .iter()
            .filter_map(|interval| interval.streams.first()?.rtt)
            // 0 means that nothing was measured yet.
            .filter(|rtt| *rtt > 0)
            .collect(),
        ..Connection::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read() {
        let text = r#"{"start":{"tcp_mss_default":1448,"connected":[{"socket":5,
            "local_host":"10.0.0.1","local_port":40000,"remote_host":"10.0.0.2","remote_port":5201}]},"intervals":[
            {"streams":[{"rtt":0}]},{"streams":[{"rtt":40,"rttvar":3}]},{"streams":[{"rtt":56}]}],"end":{
            "streams":[{"sender":{"retransmits":7,"mean_rtt":48,"min_rtt":40},"receiver":{}}],
            "sum_sent":{"bits_per_second":2e6,"bytes":134664,"retransmits":7},
            "sum_received":{"bits_per_second":1.5e6},
            "sender_tcp_congestion":"bbr","receiver_tcp_congestion":"bbr"}}"#;
        let connection = parse_iperf3(text).unwrap();
        assert_eq!(data_port(text), Some(40000));
        assert_eq!(data_port("{}"), None);
        assert_eq!(connection.goodput_bps, 1.5e6);
        assert_eq!(connection.retransmits, 7);
        assert_eq!(connection.arm, "bbr");
        assert_eq!(connection.mean_rtt_us, Some(48.0));
        assert_eq!(connection.min_rtt_us, Some(40.0));
        assert_eq!(connection.srtt_us, [40, 56]);
        // 93 segments of 1448 bytes, and 7 again.
        assert_eq!(connection.retransmission_share(), Some(0.07));
        assert_eq!(connection.error, None);
    }

    #[test]
    fn failures_keep_their_reason() {
        for (text, reason) in [
            (
                r#"{"end":{},"error":"unable to connect"}"#,
                "unable to connect",
            ),
            (r#"{"end":{}}"#, "nothing received"),
            ("", "iperf3's output"),
            ("{\"end\":", "iperf3's output"),
        ] {
            let error = parse_iperf3(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
