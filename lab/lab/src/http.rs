//! A real web server for pages: nginx at the client's end of a pair, from where data is sent.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::error::Error;
use crate::host::{Pair, Side};
use crate::traffic::Server;

/// The port.
const PORT: u16 = 80;
/// Message of nginx once it accepts connections.
const ANNOUNCES: &str = "using the \"epoll\" event method";
/// Time within which it must.
const START: Duration = Duration::from_secs(20);
/// Bytes of the object, of which clients ask for parts. The file has no blocks.
const OBJECT_BYTES: u64 = 1 << 30;

/// The server's address, as clients at the other end of a link ask it.
pub(crate) fn server_address(client: IpAddr) -> SocketAddr {
    SocketAddr::new(client, PORT)
}

/// Starts nginx and waits until it accepts connections. It keeps its files in a directory that does
/// not exist yet.
pub(crate) fn start_nginx(pair: &Pair, mode: &str, directory: &Path) -> Result<Server, Error> {
    let www = directory.join("www");
    fs::create_dir_all(&www).map_err(Error::io("cannot create", &www))?;
    let object = www.join("object");
    File::create(&object)
        .and_then(|file| file.set_len(OBJECT_BYTES))
        .map_err(Error::io("cannot write", &object))?;
    let settings = directory.join("nginx.conf");
    let of = nginx_configuration(pair.first_address(Side::Client).is_ipv6());
    fs::write(&settings, of).map_err(Error::io("cannot write", &settings))?;
    add_accounts()?;
    let mut command = pair.command_in(Side::Client, "nginx")?;
    command
        .args(["-e", "stderr", "-p"])
        .arg(directory)
        .arg("-c")
        .arg(&settings);
    Server::start_server(command, ANNOUNCES, mode, START)
}

/// One process, which needs nothing but its directory.
fn nginx_configuration(ipv6: bool) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {kind};\n"))
        .concat();
    let any = if ipv6 { "[::]:" } else { "" };
    format!(
        "daemon off;\nmaster_process off;\nuser root root;\npid nginx.pid;\n\
         error_log stderr notice;\nevents {{\n  use epoll;\n  worker_connections 4096;\n}}\n\
         http {{\n{temporary}  access_log off;\n  sendfile on;\n\
         \x20 server {{\n    listen {any}{PORT};\n    root www;\n  }}\n}}\n"
    )
}

/// Gives a guest the account that nginx asks for. Other machines have accounts.
fn add_accounts() -> Result<(), Error> {
    for (file, line) in [
        ("/etc/passwd", "root:x:0:0::/:/bin/sh\n"),
        ("/etc/group", "root:x:0:\n"),
    ] {
        if !Path::new(file).exists() {
            fs::create_dir_all("/etc").map_err(Error::io("cannot create", "/etc"))?;
            fs::write(file, line).map_err(Error::io("cannot write", file))?;
        }
    }
    Ok(())
}
