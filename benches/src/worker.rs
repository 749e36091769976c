//! Traffic: a worker runs inside a namespace and is controlled by lines on its standard input.

use std::ffi::OsString;
use std::io::{BufRead, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Subcommand;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

mod mix;

const PORT: u16 = 5001;
/// Most open files, if the limit can be raised so far.
const FILES: u64 = 200_000;
/// Longest wait of a worker for its peer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(50);

/// Work of a worker.
#[derive(Clone, Subcommand)]
pub enum Work {
    /// Accepts one connection after the other and closes it: the end that closes first keeps
    /// the TIME-WAIT, and the clients' ports stay free.
    Greet,
    /// Accepts `number` connections, reads `bytes` from each in turn, then each to its end.
    Hold { number: usize, bytes: usize },
    /// Opens a connection to each of `number` addresses from `first` on, with a congestion
    /// control if one is named; on a line, sends `bytes` on each; on another, closes all.
    Open {
        first: IpAddr,
        number: usize,
        bytes: usize,
        congestion_control: Option<OsString>,
    },
    /// Connects and closes for `seconds`, or `rate` times a second if that is above 0.
    Loop {
        address: IpAddr,
        seconds: f64,
        rate: u64,
    },
    /// Sends UDP packets back.
    Echo,
    /// Sends `number` packets to an echo, one by one; prints the round-trip time of each
    /// in microseconds.
    Ping { address: IpAddr, number: usize },
    /// Sends `bytes` on each of `number` connections to a holder, one by one; prints how
    /// long each took, in microseconds.
    Request {
        address: IpAddr,
        number: usize,
        bytes: usize,
    },
    /// Accepts connections and reads each to its end.
    Drain,
    /// Accepts connections and keeps them, unread.
    Keep,
    /// Makes `rate` connections a second, at random times, to the `hosts` addresses from `first`
    /// on, which move on by `drift` addresses a second; each sends as much as a transfer of a
    /// content network. On a line prints how many ended, how many failed, and the bytes sent.
    Mix {
        first: IpAddr,
        hosts: u32,
        drift: f64,
        rate: f64,
    },
    /// Makes a connection to each of `number` addresses from `first` on, `at_a_time`; sends `bytes` on
    /// each and waits for its end. Prints the address and the seconds that each took.
    Visit {
        first: IpAddr,
        number: u32,
        bytes: usize,
        at_a_time: usize,
    },
    /// An agent of a fleet without a kernel, for the soak.
    Light(crate::fleet::light::Options),
    /// Opens a connection and prints its congestion control and its user timeout, ms; on each
    /// line sends `bytes` and, a moment later, prints them again.
    Options { address: IpAddr, bytes: usize },
}

/// Runs the work.
pub fn run(work: &Work) -> Result<()> {
    match work {
        Work::Greet => greet(),
        Work::Hold { number, bytes } => hold(*number, *bytes),
        Work::Open {
            first,
            number,
            bytes,
            congestion_control,
        } => open(*first, *number, *bytes, congestion_control.as_ref()),
        Work::Loop {
            address,
            seconds,
            rate,
        } => connect_loop(*address, *seconds, *rate),
        Work::Echo => echo(),
        Work::Ping { address, number } => ping(*address, *number),
        Work::Request {
            address,
            number,
            bytes,
        } => request(*address, *number, *bytes),
        Work::Visit {
            first,
            number,
            bytes,
            at_a_time,
        } => mix::visit(*first, *number, *bytes, *at_a_time),
        Work::Light(options) => crate::fleet::light::run(options),
        Work::Options { address, bytes } => options(*address, *bytes),
        Work::Drain => drain(),
        Work::Keep => keep(),
        Work::Mix {
            first,
            hosts,
            drift,
            rate,
        } => mix::run(*first, *hosts, *drift, *rate),
    }
}

fn say(word: &str) -> Result<()> {
    println!("{word}");
    std::io::stdout()
        .flush()
        .context("writing to the benchmark")
}

fn await_go() -> Result<()> {
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

fn listen() -> Result<TcpListener> {
    let listener = TcpListener::bind(("0.0.0.0", PORT))?;
    say("listening")?;
    Ok(listener)
}

fn to_end(mut connection: TcpStream) {
    let mut buffer = [0; 4096];
    // A reset ends a connection as well as a FIN.
    while connection.read(&mut buffer).is_ok_and(|length| length > 0) {}
}

fn greet() -> Result<()> {
    let listener = listen()?;
    let second = listener.try_clone()?;
    std::thread::spawn(move || second.incoming().flatten().for_each(drop));
    listener.incoming().flatten().for_each(drop);
    Ok(())
}

fn drain() -> Result<()> {
    raise_files()?;
    for connection in listen()?.incoming().flatten() {
        std::thread::spawn(move || to_end(connection));
    }
    Ok(())
}

fn keep() -> Result<()> {
    raise_files()?;
    let kept: Vec<TcpStream> = listen()?.incoming().flatten().collect();
    drop(kept);
    Ok(())
}

fn hold(number: usize, bytes: usize) -> Result<()> {
    raise_files()?;
    let listener = listen()?;
    loop {
        let mut connections = Vec::with_capacity(number);
        for _ in 0..number {
            connections.push(listener.accept()?.0);
        }
        let mut buffer = vec![0; bytes];
        for connection in &mut connections {
            connection.set_read_timeout(Some(PATIENCE))?;
            connection.read_exact(&mut buffer)?;
        }
        connections.into_iter().for_each(to_end);
        say("round over")?;
    }
}

fn open(
    first: IpAddr,
    number: usize,
    bytes: usize,
    congestion_control: Option<&OsString>,
) -> Result<()> {
    raise_files()?;
    let IpAddr::V4(first) = first else {
        anyhow::bail!("an IPv4 address is wanted")
    };
    let data = vec![0; bytes];
    let mut round = 0;
    loop {
        await_go()?;
        let mut connections = Vec::with_capacity(number);
        for index in 0..number {
            let bits = first.to_bits() + (round * number + index) as u32;
            let address = SocketAddr::from((bits.to_be_bytes(), PORT));
            let connection = TcpStream::connect_timeout(&address, PATIENCE)?;
            if let Some(name) = congestion_control {
                setsockopt(&connection, sockopt::TcpCongestion, name)?;
            }
            connections.push(connection);
        }
        say("open")?;
        await_go()?;
        for connection in &mut connections {
            connection.write_all(&data)?;
        }
        say("sent")?;
        await_go()?;
        for connection in connections {
            connection.shutdown(Shutdown::Write)?;
            to_end(connection);
        }
        say("closed")?;
        round += 1;
    }
}

fn options(address: IpAddr, bytes: usize) -> Result<()> {
    let data = vec![0; bytes];
    let mut connection = TcpStream::connect((address, PORT))?;
    let told = |connection: &TcpStream| -> Result<()> {
        let control = getsockopt(connection, sockopt::TcpCongestion)?;
        let timeout_ms = getsockopt(connection, sockopt::TcpUserTimeout)?;
        let control = control.to_string_lossy();
        say(&format!("{} {timeout_ms}", control.trim_end_matches('\0')))
    };
    loop {
        told(&connection)?;
        await_go()?;
        connection.write_all(&data)?;
        std::thread::sleep(PAUSE);
    }
}

fn connect_loop(address: IpAddr, seconds: f64, rate: u64) -> Result<()> {
    let address = SocketAddr::from((address, PORT));
    loop {
        await_go()?;
        let start = Instant::now();
        let mut number = 0u64;
        while start.elapsed().as_secs_f64() < seconds {
            if rate > 0 && start.elapsed().as_secs_f64() * (rate as f64) < number as f64 {
                std::thread::yield_now();
                continue;
            }
            to_end(TcpStream::connect(address)?);
            number += 1;
        }
        say(&format!("{number} {}", start.elapsed().as_secs_f64()))?;
    }
}

fn raise_files() -> Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // A guest begins with few.
    if setrlimit(Resource::RLIMIT_NOFILE, FILES, FILES).is_ok() {
        return Ok(());
    }
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

const ECHO_PORT: u16 = 7;

fn echo() -> Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", ECHO_PORT)).context("binding the echo's port")?;
    let mut buffer = [0; 64];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        socket.send_to(&buffer[..length], from)?;
    }
}

fn ping(address: IpAddr, number: usize) -> Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).context("binding a port")?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect((address, ECHO_PORT))?;
    for _ in 0..number {
        let began = Instant::now();
        socket.send(&[0; 8])?;
        socket.recv(&mut [0; 8]).context("no packet came back")?;
        say(&began.elapsed().as_micros().to_string())?;
    }
    Ok(())
}

fn request(address: IpAddr, number: usize, bytes: usize) -> Result<()> {
    let data = vec![0; bytes];
    for _ in 0..number {
        let began = Instant::now();
        let mut connection = TcpStream::connect((address, PORT))?;
        connection.write_all(&data)?;
        connection.shutdown(Shutdown::Write)?;
        to_end(connection);
        say(&began.elapsed().as_micros().to_string())?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
