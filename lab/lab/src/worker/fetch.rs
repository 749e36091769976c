//! Pages that are asked for: each by a curl of its own, which has several connections at once.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use thalweg_process::tool;

use super::web::Page;
use super::{Flow, Load, Plan, STALL_TIMEOUT_MS, Web, now_ns};
use crate::error::Error;

/// Reads the plan, asks for its pages and writes the result.
pub(super) fn run_fetch(result: &Path) -> Result<(), Error> {
    let plan: Plan = serde_json::from_reader(io::stdin().lock())
        .map_err(|error| Error::system("cannot read the plan")(error.into()))?;
    let flows: Vec<Flow> = (plan.senders.iter())
        .filter_map(|sender| match sender.load {
            Load::Web(web) => Some(fetch_pages(&web, &plan)),
            _ => None,
        })
        .flatten()
        .collect();
    let text = serde_json::to_vec(&flows)
        .map_err(|error| Error::io("cannot write", result)(error.into()))?;
    fs::write(result, text).map_err(Error::io("cannot write", result))
}

/// Asks for all pages, each at its moment.
fn fetch_pages(web: &Web, plan: &Plan) -> Vec<Flow> {
    let begun_ns = now_ns();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for page in web.plan_pages() {
            let moment_ns = begun_ns + page.at_ns;
            let left_ns = moment_ns.saturating_sub(now_ns());
            std::thread::sleep(Duration::from_nanos(left_ns));
            threads.push(scope.spawn(move || load_page(web, plan, &page, moment_ns)));
        }
        threads
            .into_iter()
            .flat_map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

/// Curl's report of a transfer.
#[derive(Deserialize)]
struct Transfer {
    url_effective: String,
    http_code: u32,
    size_download: u64,
    /// Seconds.
    time_total: f64,
    errormsg: Option<String>,
}

/// The objects of a page, in order. A page takes until curl has ended: its transfers have no
/// common clock.
fn load_page(web: &Web, plan: &Plan, page: &Page, moment_ns: u64) -> Vec<Flow> {
    let output = run_curl(web, &curl_configuration(plan, page));
    let page_us = (now_ns() - moment_ns) as f64 / 1e3;
    let (text, mut why) = match output {
        Ok(text) => (text, "curl says nothing of it".to_owned()),
        Err(error) => (String::new(), format!("cannot run curl: {error}")),
    };
    let mut transfers = Vec::new();
    for line in text.lines() {
        match serde_json::from_str::<Transfer>(line) {
            Ok(transfer) => transfers.push(transfer),
            Err(error) => why = format!("cannot understand curl: {error}"),
        }
    }
    (0..page.objects.len())
        .map(|n| {
            let mut flow = page.unsent_flow(n, moment_ns);
            let name = format!("?{n}");
            let own = transfers
                .iter()
                .find(|transfer| transfer.url_effective.ends_with(&name));
            match own {
                None => flow.error = Some(why.clone()),
                Some(transfer) => {
                    flow.received_bytes = transfer.size_download;
                    flow.took_us = transfer.time_total * 1e6;
                    flow.page_us = page_us;
                    if Some(transfer.size_download) != flow.flow_bytes {
                        let told = transfer.errormsg.clone().unwrap_or_default();
                        let (bytes, code) = (transfer.size_download, transfer.http_code);
                        flow.error = Some(format!("{bytes} bytes, status {code}: {told}"));
                    }
                }
            }
            flow
        })
        .collect()
}

/// The configuration of curl that asks for a page. The server has one object: parts of it stand for
/// all.
fn curl_configuration(plan: &Plan, page: &Page) -> String {
    let patience_s = STALL_TIMEOUT_MS / 1000;
    let of = |(n, bytes): (usize, &u64)| {
        format!(
            "url = \"http://{}/object?{n}\"\nrange = \"0-{}\"\noutput = \"/dev/null\"\n\
             write-out = \"%{{json}}\\n\"\nconnect-timeout = {patience_s}\n\
             speed-time = {patience_s}\nspeed-limit = 1\n",
            plan.server_address(0),
            bytes - 1
        )
    };
    let objects: Vec<String> = page.objects.iter().enumerate().map(of).collect();
    objects.join("next\n")
}

fn run_curl(web: &Web, request: &str) -> io::Result<String> {
    let mut command = Command::new(tool::find_program("curl").unwrap_or_else(|| "curl".into()));
    let mut child = command
        .args(["--disable", "--silent", "--parallel", "--parallel-max"])
        .arg(web.at_once.to_string())
        .args(["--config", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(request.as_bytes())?;
    }
    // It fails where a transfer does, of which it tells.
    let output = child.wait_with_output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_names_each_object_and_its_bytes() {
        let plan = Plan {
            servers: vec!["[fd00::1]:80".parse().unwrap()],
            arms: Vec::new(),
            seed: 1,
            senders: Vec::new(),
        };
        let page = Page {
            number: 0,
            at_ns: 0,
            objects: vec![100, 2_000],
            stays: false,
        };
        let text = curl_configuration(&plan, &page);
        let (first, second) = text.split_once("next\n").unwrap();
        assert!(first.starts_with("url = \"http://[fd00::1]:80/object?0\"\nrange = \"0-99\"\n"));
        assert!(second.contains("object?1\"\nrange = \"0-1999\"\n"));
        assert!(second.contains("write-out = \"%{json}\\n\"\n"));
    }
}
