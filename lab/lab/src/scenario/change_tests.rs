use crate::scenario::tests::{fault, faults_are, parse};

#[test]
fn changes_add_up() {
    let scenario = parse(
        "name = \"x\"\n[path]\nloss = \"1%\"\nrate = \"10mbit\"\n\
         [[change]]\nat = 5\nrate = \"20mbit\"\n\
         [[change]]\nat = 5\nwithin = \"500ms\"\n\
         gilbert_elliott = { to_bad = \"1%\", to_good = \"10%\" }\n",
    )
    .unwrap();
    let [first, second] = &scenario.changes[..] else {
        panic!("{:?}", scenario.changes)
    };
    assert_eq!((first.at, first.within), (5, None));
    assert_eq!(first.path.rate.unwrap().bps(), 20_000_000);
    assert_eq!(first.path.loss, scenario.path.loss);
    assert_eq!(second.within.unwrap().us(), 500_000);
    assert_eq!(second.path.rate.unwrap().bps(), 20_000_000);
    assert_eq!(second.path.loss, None);
    assert!(second.path.gilbert_elliott.is_some());
}

#[test]
fn change_of_syn_loss_keeps_other_losses() {
    let scenario = parse(
        "name = \"x\"\n[path]\nloss = \"1%\"\nreverse_loss = \"2%\"\n\
         [[change]]\nat = 2\nsyn_loss = \"100%\"\n[[change]]\nat = 3\nloss = \"3%\"\n",
    )
    .unwrap();
    let losses: Vec<String> = scenario
        .changes
        .iter()
        .map(|change| {
            let path = &change.path;
            let loss = path.loss.unwrap_or_default();
            format!("{loss} {} {}", path.syn_loss, path.reverse_loss)
        })
        .collect();
    assert_eq!(losses, ["1% 100% 2%", "3% 100% 2%"]);
    let json = serde_json::to_value(&scenario.path).unwrap();
    assert_eq!(json.get("syn_loss"), None, "older results have no such key");
}

#[test]
fn a_change_is_of_one_host_or_of_every_host() {
    let scenario = parse(
        "name = \"x\"\n[[host]]\nname = \"a\"\nloss = \"3%\"\n[[host]]\nname = \"b\"\nrate = \"10mbit\"\n\
         [[change]]\nat = 2\nhost = \"b\"\nrate = \"20mbit\"\n\
         [[change]]\nat = 2\nhost = \"a\"\nloss = \"4%\"\n\
         [[change]]\nat = 5\nreverse_loss = \"1%\"\n",
    )
    .unwrap();
    let found: Vec<(u32, &str)> = scenario
        .changes
        .iter()
        .map(|change| (change.at, change.host.as_str()))
        .collect();
    assert_eq!(found, [(2, "b"), (2, "a"), (5, "a"), (5, "b")]);
    // Each change continues from its own host's path.
    let [_, _, a, b] = &scenario.changes[..] else {
        panic!("{found:?}")
    };
    assert_eq!(a.path.loss, Some("4%".parse().unwrap()));
    assert_eq!(a.path.rate, None);
    assert_eq!(b.path.loss, None);
    assert_eq!(b.path.rate, Some("20mbit".parse().unwrap()));
    assert_eq!(b.path.reverse_loss, "1%".parse().unwrap());
    // Twice at once for one host, or back in time, is no order.
    let twice = "name = \"x\"\n[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n\
                 [[change]]\nat = 2\nhost = \"b\"\nloss = \"1%\"\n[[change]]\nat = 2\nloss = \"2%\"\n";
    let fault = fault(twice);
    assert_eq!((fault.at.line, fault.at.column), (11, 6), "{fault}");
}

#[test]
fn faults_of_changes_have_their_place() {
    faults_are(
        "[[change]]\n",
        &[
            ("at = 2", (2, 1), "expected what changes: loss, "),
            (
                "at = 61\nloss = \"1%\"",
                (3, 6),
                "found the number 61, expected a whole number from 1 to 60",
            ),
            (
                "at = 3\nloss = \"1%\"\n[[change]]\nat = 3\nloss = \"2%\"",
                (6, 6),
                "in the order in which they happen",
            ),
            (
                "at = 3\nloss = \"1%\"\nack_delay = \"1ms\"",
                (5, 1),
                "found the unknown key \"ack_delay\"",
            ),
            ("at = 3\nqueue = \"1mb\"", (4, 9), "a queue without `rate`"),
            (
                "at = 3\nloss = \"1%\"\nrates = \"1mbit\"",
                (5, 1),
                "found the unknown key \"rates\"",
            ),
            (
                "at = 3\nloss = \"1%\"\nwithin = \"1h\"",
                (5, 10),
                "expected a time from",
            ),
        ],
    );
}
