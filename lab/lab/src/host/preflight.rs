//! Preconditions of a run, checked before anything is created.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;

use nix::libc;
use thalweg_link::tun;
use thalweg_process::capabilities::{self, CapabilitySet};
use thalweg_process::tool;

use super::{WireKind, cgroup};
use crate::arms;
use crate::error::Error;
use crate::mode::Mode;
use crate::scenario::{Aqm, Change, PathModel, Qdisc, Scenario};
use crate::ticks::Ticks;
use crate::timing;
use crate::units::Delay;

/// Capabilities and their use.
const CAPABILITIES: [(CapabilitySet, &str); 2] = [
    (
        CapabilitySet::NET_ADMIN,
        "CAP_NET_ADMIN (links, queues, the loss program)",
    ),
    (
        CapabilitySet::SYS_ADMIN,
        "CAP_SYS_ADMIN (network namespaces, mounts, BPF)",
    ),
];

/// Name of the agent's program that chooses congestion controls (`bpf/learn.bpf.c`). The kernel
/// keeps 15 characters of a name.
const LEARNER: &str = "learn_sockops";

/// Everything that is missing, one line each.
pub fn missing_requirements() -> Vec<String> {
    let mut missing = Vec::new();
    for (capability, what) in CAPABILITIES {
        if !capabilities::is_in_force(capability) {
            missing.push(format!("no {what}: run it as root, for instance with sudo"));
        }
    }
    missing.extend(thalweg_guest::missing_programs(thalweg_guest::TOOLS));
    if let Err(error) = cgroup::mount_point() {
        missing.push(error.to_string());
    }
    // The queueing disciplines are tried last: without privilege the answer would be about that.
    if missing.is_empty() {
        for (words, what) in [
            ("qdisc add dev lo clsact", "clsact (CONFIG_NET_SCH_INGRESS)"),
            (
                "qdisc add dev lo root tbf rate 1mbit burst 3000 limit 3000",
                "tbf (CONFIG_NET_SCH_TBF)",
            ),
        ] {
            if let Err(why) = try_in_new_namespace(words) {
                missing.push(format!(
                    "the kernel has no queueing discipline {what}: {why}"
                ));
            }
        }
    }
    missing
}

/// Kernel features that these scenarios and modes need beyond [`missing_requirements`] and that are missing, one
/// line each with its user. Only meaningful if [`missing_requirements`] is empty.
pub fn missing_for(scenarios: &[Scenario], modes: &[Mode], wire: WireKind) -> Vec<String> {
    let mut missing = Vec::new();
    let senders = || scenarios.iter().filter(is_sender);
    let programs: BTreeSet<_> = scenarios
        .iter()
        .flat_map(Scenario::needed_programs)
        .collect();
    missing.extend(thalweg_guest::missing_programs(
        programs.into_iter().copied(),
    ));
    // Cgroups of a run are made below the mount: programs there run for its connections, too.
    let is_here = |it: &Scenario| it.sender.is_native() || it.receiver.is_native();
    if scenarios.iter().any(is_here)
        && let Ok(parent) = cgroup::mount_point()
    {
        missing.extend(agent_above(&cgroup::sockops_programs(&parent)));
    }
    let mut paths = scenarios.iter().flat_map(Scenario::remote_paths);
    let netem = paths.any(|(_, path)| path.delay > Delay::ZERO);
    if wire == WireKind::Tun {
        missing.extend(missing_for_link(scenarios));
    } else if netem && let Err(why) = try_in_new_namespace("qdisc add dev lo root netem delay 1ms")
    {
        missing.push(format!(
            "this kernel has no netem (CONFIG_NET_SCH_NETEM), which `delay` needs: {why}"
        ));
    }
    missing.extend(missing_for_aqm(scenarios, wire));
    missing.extend(missing_for_ack_delay(scenarios, wire));
    for qdisc in [Qdisc::Fq, Qdisc::Pfifo] {
        if let Some(kind) = qdisc.tc_name()
            && senders().any(|scenario| scenario.system.qdisc == qdisc)
            && let Err(why) = try_in_new_namespace(&format!("qdisc add dev lo root {kind}"))
        {
            missing.push(format!(
                "this kernel has no {kind}, which `qdisc = \"{kind}\"` needs: {why}"
            ));
        }
    }
    missing.extend(missing_congestion_controls(scenarios, modes));
    match Ticks::current_kernel() {
        Ok(here) => missing.extend(timing::missing_timing(here, scenarios)),
        Err(error) => missing.push(error.to_string()),
    }
    missing
}

/// Hint for an agent whose program is among those above a run's cgroups.
fn agent_above(programs: &[String]) -> Option<String> {
    let learns = programs.iter().any(|name| name.starts_with(LEARNER));
    learns.then(|| {
        "an agent of this machine would decide in the laboratory, too: stop it (`thalweg detach`), \
         give it a `cgroup` of its own, or use --backend uml, virtual or qemu"
            .to_owned()
    })
}

/// Features that the queues of the scenarios' paths need and this wire lacks.
fn missing_for_aqm(scenarios: &[Scenario], wire: WireKind) -> Vec<String> {
    let mut missing = Vec::new();
    let wants = |aqm: Aqm| {
        let mut paths = scenarios.iter().flat_map(Scenario::remote_paths);
        paths.any(|(_, path)| path.aqm == aqm)
    };
    if wants(Aqm::Red) {
        const RED: &str = "qdisc add dev lo root red limit 60000 min 5000 max 15000 \
                           avpkt 1000 burst 9 bandwidth 10mbit probability 0.02";
        let asked = "`aqm = \"red\"`";
        if wire == WireKind::Tun {
            missing.push(format!("the link backend has no red, which {asked} needs"));
        } else if let Err(why) = try_in_new_namespace(RED) {
            missing.push(format!(
                "this kernel has no red (CONFIG_NET_SCH_RED), which {asked} needs: {why}"
            ));
        }
    }
    if wants(Aqm::Step) && wire != WireKind::Tun {
        missing.push(
            "no queueing discipline here marks from a time on, which `aqm = \"step\"` needs \
             (--backend link does)"
                .to_owned(),
        );
    }
    missing
}

/// The delay of ACKs, if the scenarios' paths need it and this wire lacks it.
fn missing_for_ack_delay(scenarios: &[Scenario], wire: WireKind) -> Option<String> {
    let mut paths = scenarios.iter().flat_map(Scenario::remote_paths);
    let wanted = paths.any(|(_, path)| path.ack_delay > Delay::ZERO);
    (wanted && wire != WireKind::Tun).then(|| {
        "no queueing discipline here delays ACKs, which `ack_delay` needs (--backend link does)"
            .to_owned()
    })
}

/// Features of the scenarios that a path forwarded by this process lacks.
fn missing_for_link(scenarios: &[Scenario]) -> Vec<String> {
    let mut missing = Vec::new();
    if let Err(error) = fs::File::options().read(true).write(true).open(tun::DEVICE) {
        missing.push(format!("{}: {error} (modprobe tun)", tun::DEVICE));
    }
    for scenario in scenarios {
        if scenario
            .remote_paths()
            .iter()
            .any(|(_, path)| path.trace.is_some())
        {
            missing.push(format!(
                "{}: `trace` (the link backend changes no rate)",
                scenario.name
            ));
        }
        let bottleneck = |path: &PathModel| (path.rate, path.queue);
        let paths = scenario.remote_paths();
        let moves = |change: &Change| {
            let mut own = paths.iter().filter(|(name, _)| *name == change.host);
            own.any(|(_, path)| bottleneck(&change.path) != bottleneck(path))
        };
        if scenario.changes.iter().any(moves) {
            missing.push(format!(
                "{}: a [[change]] of `rate` or `queue` (the link backend changes loss only)",
                scenario.name
            ));
        }
        for (_, path) in paths {
            if path.mtu as usize > tun::MTU_BYTES {
                missing.push(format!(
                    "{}: an mtu of {} (the link backend carries at most {})",
                    scenario.name,
                    path.mtu,
                    tun::MTU_BYTES
                ));
            }
        }
    }
    missing
}

/// The congestion controls that scenarios and modes name and this kernel lacks.
fn missing_congestion_controls(scenarios: &[Scenario], modes: &[Mode]) -> Vec<String> {
    let mut missing = Vec::new();
    let senders = || scenarios.iter().filter(is_sender);
    let mut offered = super::available_congestion_controls().unwrap_or_default();
    if arms::kernel_takes_bpf_cc() {
        let brought = scenarios.iter().flat_map(|scenario| &scenario.arms);
        offered.extend(brought.map(|arm| arm.name.clone()));
    }
    let fixed = modes.iter().filter_map(|mode| match mode {
        Mode::Fixed(name) if senders().next().is_some() => Some((name, "the mode")),
        _ => None,
    });
    let defaults = senders().map(|scenario| (&scenario.system.default_cc, "`default_cc`"));
    let policies = scenarios.iter().flat_map(|scenario| {
        let chosen = modes.iter().filter_map(|mode| scenario.mode_policy(mode));
        chosen.flat_map(|policy| &policy.congestion_controls)
    });
    let learning = senders().filter(|_| modes.iter().any(Mode::learns));
    let agents = learning.flat_map(|scenario| &scenario.agent.arms);
    let mut named = BTreeSet::new();
    for (name, by) in fixed
        .chain(defaults)
        .chain(policies.map(|name| (name, "the policy")))
        .chain(agents.map(|name| (name, "`arms` of [agent]")))
    {
        if !offered.contains(name) && named.insert(name) {
            missing.push(format!(
                "this kernel offers no congestion control {name}, which {by} names \
                 (it has {}; a module may add it: modprobe tcp_{name})",
                offered.join(", ")
            ));
        }
    }
    missing
}

/// Whether the sender uses this kernel; a stack has its own.
fn is_sender(scenario: &&Scenario) -> bool {
    scenario.sender.is_native()
}

/// Fails with everything that a run of these scenarios lacks here.
pub(crate) fn check_requirements(
    scenarios: &[Scenario],
    modes: &[Mode],
    wire: WireKind,
) -> Result<(), Error> {
    let mut missing = missing_requirements();
    if missing.is_empty() {
        missing = missing_for(scenarios, modes, wire);
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Error::Preconditions(missing))
    }
}

/// Runs `tc` in a new network namespace, which ends with it.
fn try_in_new_namespace(words: &str) -> Result<(), String> {
    let mut command = tool::program_command("tc");
    command.args(words.split(' '));
    // SAFETY: between fork and exec only unshare(2) is called, a system call that takes one
    // integer.
    unsafe {
        command.pre_exec(|| match libc::unshare(libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::tests::parse;

    #[test]
    fn agent_above_is_told_by_its_learner() {
        let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let told = agent_above(&names(&["others", "learn_sockops"])).unwrap();
        assert!(told.contains("thalweg detach"), "{told}");
        assert_eq!(agent_above(&names(&["others", "policy_sockops"])), None);
        assert_eq!(agent_above(&[]), None);
    }

    #[test]
    fn ack_delay_of_a_host_needs_the_link_backend() {
        let with = |keys: &str| {
            let hosts = "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n";
            [parse(&format!("name = \"x\"\n{hosts}{keys}\n")).unwrap()]
        };
        let delayed = with("ack_delay = \"100ms\"");
        assert_eq!(missing_for_ack_delay(&delayed, WireKind::Tun), None);
        assert_eq!(
            missing_for_ack_delay(&delayed, WireKind::Veth).unwrap(),
            "no queueing discipline here delays ACKs, which `ack_delay` needs (--backend link does)"
        );
        assert_eq!(missing_for_ack_delay(&with(""), WireKind::Veth), None);
    }

    #[test]
    fn aqm_of_a_host_needs_what_that_of_the_path_needs() {
        let with = |keys: &str| {
            let hosts = "[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n";
            let text = format!("name = \"x\"\n[path]\nrate = \"10mbit\"\n{hosts}{keys}\n");
            [parse(&text).unwrap()]
        };
        let plain = with("");
        assert!(missing_for_aqm(&plain, WireKind::Veth).is_empty());
        let step = with("aqm = \"step\"\necn = true\nmark = \"1ms\"");
        assert!(missing_for_aqm(&step, WireKind::Tun).is_empty());
        let told = missing_for_aqm(&step, WireKind::Veth).join("\n");
        assert!(told.contains("`aqm = \"step\"`"), "{told}");
        let red = with("aqm = \"red\"");
        let told = missing_for_aqm(&red, WireKind::Tun).join("\n");
        assert!(told.contains("no red"), "{told}");
    }
}
