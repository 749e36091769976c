use std::path::Path;

use thalweg_units::Faults;

use crate::scenario::{Scenario, TrafficKind};

const RULE: &str = "name = \"p\"\n[[rule]]\nname = \"r\"\n";

/// A directory with a policy, and a scenario parsed as if it were there.
fn parse_beside(policy: &str, tables: &str) -> Result<Scenario, Faults> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("sub")).unwrap();
    std::fs::write(directory.path().join("sub/p.toml"), policy).unwrap();
    let text = format!("name = \"x\"\n{tables}");
    Scenario::parse(&text, &directory.path().join("x.toml"))
}

fn table(name: &str) -> String {
    format!("[[policy]]\nname = \"{name}\"\nfile = \"sub/p.toml\"\n")
}

#[test]
fn policies_are_read_from_beside_the_scenario() {
    let policy = format!(
        "{RULE}set = {{ cwnd_clamp = 10, congestion = \"reno\" }}\n\
         [[rule]]\nname = \"s\"\nset = {{ congestion = \"reno\" }}\non.rto = {{ congestion = \"bbr\" }}\n"
    );
    let expect = "[[expect]]\nmode = \"policy:a-1\"\nstatistic = \"failures\"\nat_most = 0\n";
    let scenario =
        parse_beside(&policy, &format!("{}{}{expect}", table("a-1"), table("b"))).unwrap();
    let names: Vec<&str> = scenario
        .policies
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(names, ["a-1", "b"]);
    assert_eq!(scenario.policies[0].text, policy);
    assert_eq!(scenario.policies[0].congestion_controls, ["reno", "bbr"]);
    assert_eq!(scenario.expect[0].mode, crate::Mode::Policy("a-1".into()));
}

#[test]
fn faults_in_the_scenario_have_its_places() {
    let fine = format!("{RULE}set = {{ cwnd_clamp = 10 }}\n");
    let learns = format!("{RULE}set = {{ learn_from = [\"reno\"] }}\n");
    let expect = |mode: &str, reference: &str| {
        format!(
            "[[expect]]\nmode = \"{mode}\"\nstatistic = \"median\"\nrelative_to = \"{reference}\"\n\
             at_least = 1\n"
        )
    };
    for (policy, tables, place, words) in [
        (&fine, table("a b"), (3, 8), "letters, digits"),
        (&fine, table(""), (3, 8), "letters, digits"),
        (&fine, table("a") + &table("a"), (6, 8), "\"a\" again"),
        (
            &fine,
            "[[policy]]\nname = \"a\"\nfile = \"none.toml\"\n".to_owned(),
            (4, 8),
            "cannot read ",
        ),
        (
            &fine,
            "[[policy]]\nname = \"a\"\n".to_owned(),
            (2, 1),
            "policy 1: file: found nothing",
        ),
        (
            &fine,
            table("a") + "when = 1\n",
            (5, 1),
            "found the unknown key \"when\"",
        ),
        (&learns, table("a"), (4, 8), "learn_from"),
        (
            &fine,
            table("a") + &expect("policy:b", "baseline"),
            (6, 8),
            "found policy \"b\", expected one of the policies (a)",
        ),
        (
            &fine,
            expect("baseline", "policy:b"),
            (5, 15),
            "found policy \"b\", expected another mode",
        ),
    ] {
        let error = parse_beside(policy, &tables).unwrap_err();
        let fault = &error.0[0];
        assert_eq!((fault.at.line, fault.at.column), place, "{error}");
        assert!(
            fault.file.ends_with("x.toml") && error.0.len() == 1,
            "{error}"
        );
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn faults_in_a_policy_have_its_file_and_places() {
    for (policy, place, words) in [
        (
            format!("{RULE}set = {{ cwnd_clamp = 0 }}\n"),
            (4, 22),
            "from 1 to 2147483647",
        ),
        (format!("{RULE}set = {{ foo = 2 }}\n"), (4, 9), "foo"),
        ("name = \"p\"\nrule = ".to_owned(), (2, 8), "expected"),
    ] {
        let error = parse_beside(&policy, &table("a")).unwrap_err();
        let fault = &error.0[0];
        assert!(fault.file.ends_with("sub/p.toml"), "{error}");
        assert_eq!((fault.at.line, fault.at.column), place, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// The scenarios of Thalweg that name policies.
#[test]
fn the_clamp_experiment_differs_in_one_number() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/published");
    for rpcs in [1, 2, 4, 8, 16] {
        let scenario = Scenario::load(&folder.join(format!("clamp-{rpcs}.toml"))).unwrap();
        let first = Scenario::load(&folder.join("clamp-1.toml")).unwrap();
        assert_eq!(
            scenario.traffic.kind,
            TrafficKind::Incast {
                senders: 3,
                rpcs: Some(rpcs)
            }
        );
        assert_eq!(
            (&scenario.path, &scenario.policies),
            (&first.path, &first.policies)
        );
        // The windows that the clamp allows fit into the queue.
        let windows = 3 * (u64::from(rpcs) + 1) * 100 * 1514;
        assert!(windows < scenario.path.queue.unwrap().bytes());
    }
}
