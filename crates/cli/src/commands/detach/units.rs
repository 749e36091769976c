//! Units of systemd that run agents. A unit starts its agent again after a failure, so ending the
//! process alone does not switch the agent off.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use thalweg_process::{Error, tool};

/// End of the name of a service's unit.
const SERVICE: &str = ".service";
/// Characters of a unit's name beside letters and digits (systemd.unit(5)).
const UNIT_CHARACTERS: &str = ":-_.\\@";
/// Longest wait until systemd has noticed the end of a unit's process.
const NOTICED: Duration = Duration::from_secs(2);
/// Interval of checks whether it has.
const POLL: Duration = Duration::from_millis(50);

/// The unit whose main process a process is. A process that cron or a shell in a unit started is not,
/// nor is any where no systemd answers.
pub fn unit_of(pid: u32) -> Option<String> {
    let cgroups = cgroups_of(&pid.to_string())?;
    let unit = unit_in(&cgroups)?;
    (unit_property("MainPID", unit)? == pid.to_string()).then(|| unit.to_owned())
}

/// The units that wait to start their process again, of those whose command line is wanted. A command
/// line has NUL between its words.
pub fn find_waiting(is_wanted: impl Fn(&[u8]) -> bool) -> BTreeSet<String> {
    let words = "list-units --all --type=service --state=auto-restart,auto-restart-queued --plain \
                 --no-legend";
    let listed = tool::read_tool("systemctl", words).unwrap_or_default();
    let units = listed.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.find(|word| is_unit(word))
    });
    let is_wanted = |unit: &&str| {
        let started = unit_property("ExecStart", unit);
        let line = started.as_deref().and_then(command_line);
        line.is_some_and(|line| is_wanted(&line))
    };
    units.filter(is_wanted).map(str::to_owned).collect()
}

/// Stops a unit that has its process again, or would start it again; false if it does neither.
///
/// # Errors
/// systemd refuses it or does not answer.
pub fn stop_unit(unit: &str) -> Result<bool, Error> {
    // A command of the unit itself, as in ExecStopPost=, would wait for its own end.
    let is_inside = cgroups_of("self").is_some_and(|own| unit_in(&own) == Some(unit));
    let (timeout, block) = match is_inside {
        true => (Duration::ZERO, "--no-block "),
        false => (NOTICED, ""),
    };
    let deadline = Instant::now() + timeout;
    loop {
        match unit_property("ActiveState", unit).as_deref() {
            Some("inactive" | "failed") => return Ok(false),
            // systemd stops it already. Another stop would cancel a restart.
            Some("deactivating") if is_inside => return Ok(false),
            // Its process may have ended just now.
            Some("active" | "deactivating") if Instant::now() < deadline => {
                std::thread::sleep(POLL);
            }
            _ => {
                let words = format!("stop {block}--no-ask-password -- {unit}");
                return tool::run_tool("systemctl", &words).map(|()| true);
            }
        }
    }
}

/// A property of a unit; `None` where no systemd answers.
fn unit_property(name: &str, unit: &str) -> Option<String> {
    let words = format!("show --property={name} --value -- {unit}");
    let shown = tool::read_tool("systemctl", &words).ok()?;
    Some(shown.trim().to_owned())
}

/// The file `/proc/PROCESS/cgroup` (cgroups(7)).
fn cgroups_of(process: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/{process}/cgroup")).ok()
}

/// The innermost service in the cgroups of a process, by systemd's own hierarchy.
fn unit_in(cgroups: &str) -> Option<&str> {
    cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_systemds = matches!(controllers, "" | "name=systemd");
        let mut names = path.rsplit('/');
        is_systemds.then(|| names.find(|name| is_unit(name)))?
    })
}

fn is_unit(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || UNIT_CHARACTERS.contains(c);
    name.len() > SERVICE.len() && name.ends_with(SERVICE) && name.chars().all(is_plain)
}

/// The command line in the property `ExecStart`, with NUL between its words.
fn command_line(shown: &str) -> Option<Vec<u8>> {
    let (_, rest) = shown.split_once("argv[]=")?;
    let (line, _) = rest.split_once(" ; ")?;
    let words: Vec<&str> = line.split_whitespace().collect();
    Some(words.join("\0").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_of_process_is_its_innermost_service() {
        for (cgroups, unit) in [
            (
                "0::/system.slice/thalweg.service\n",
                Some("thalweg.service"),
            ),
            (
                "0::/system.slice/system-thalweg.slice/thalweg@a\\x2db.service/inner\n",
                Some("thalweg@a\\x2db.service"),
            ),
            // Two hierarchies, one of them systemd's.
            (
                "4:memory:/other.service\n1:name=systemd:/system.slice/x.service\n0::/\n",
                Some("x.service"),
            ),
            ("1:name=systemd:/\n0::/x.service\n", Some("x.service")),
            ("0::/user.slice/user-0.slice/session-1.scope\n", None),
            ("0::/a b.service\n", None),
            ("0::/.service\n", None),
            ("0::/\n", None),
            ("", None),
        ] {
            assert_eq!(unit_in(cgroups), unit, "{cgroups}");
        }
    }

    #[test]
    fn command_line_is_that_of_the_first_start() {
        let shown = "{ path=/usr/bin/thalweg ; argv[]=/usr/bin/thalweg run --dry-run ; \
                     ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; \
                     status=0/0 }";
        let line = command_line(shown);
        assert_eq!(
            line.as_deref(),
            Some(&b"/usr/bin/thalweg\0run\0--dry-run"[..])
        );
        assert_eq!(command_line(""), None);
    }
}
