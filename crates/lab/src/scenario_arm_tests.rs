use super::*;

/// Parses a scenario that lies in a folder with a model and an object.
fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    let directory = tempfile::tempdir().unwrap();
    for name in ["m.safetensors", "x.bpf.o"] {
        std::fs::write(directory.path().join(name), "").unwrap();
    }
    Scenario::parse(
        &format!("name = \"x\"\n{text}"),
        &directory.path().join("x.toml"),
    )
}

#[test]
fn congestion_controls_are_named_or_files_beside_the_scenario() {
    let scenario = parse(
        "[[arm]]\nname = \"htcp\"\nload = \"htcp\"\n\
         [[arm]]\nname = \"rl\"\nload = \"m.safetensors\"\nreference_rate = \"1gbit\"\nreference_rtt = \"1ms\"\n\
         [[arm]]\nname = \"own\"\nload = \"./x.bpf.o\"\n",
    )
    .unwrap();
    let [htcp, model, own] = &scenario.arms[..] else {
        panic!("{:?}", scenario.arms)
    };
    assert_eq!((&htcp.file, htcp.is_model()), (&None, false));
    assert!(model.is_model() && model.file.as_deref().unwrap().ends_with("m.safetensors"));
    assert_eq!(model.reference_rate.unwrap().bps(), 1_000_000_000);
    assert_eq!(model.reference_rtt.unwrap().us(), 1000);
    assert!(own.file.is_some() && !own.is_model());
}

#[test]
fn faults_of_arms_traffic_and_marks_have_their_place() {
    let arm = "[[arm]]\nname = \"a\"\nload = \"htcp\"\n";
    let path = "[path]\nrate = \"1mbit\"\n";
    for (text, line, column, words) in [
        (format!("{arm}{arm}"), 6, 8, "each [[arm]] once"),
        (
            arm.replace("\"a\"", "\"a b\""),
            3,
            8,
            "name of a congestion control",
        ),
        (arm.replace("htcp", "no.safetensors"), 4, 8, "cannot read"),
        (
            format!("{arm}reference_rate = \"1gbit\"\n"),
            5,
            18,
            "with a model only",
        ),
        (
            format!("{path}mark = \"1ms\"\n"),
            2,
            1,
            "`aqm = \"step\"` only",
        ),
        (
            format!("{path}aqm = \"step\"\necn = true\n"),
            2,
            1,
            "needs `ecn = true` and `mark`",
        ),
        (
            format!("{path}aqm = \"step\"\nmark = \"1ms\"\n"),
            2,
            1,
            "needs `ecn = true`",
        ),
        (
            "[traffic]\nkind = \"streams\"\nduration = \"2s\"\nwarmup = \"2s\"\n".to_owned(),
            5,
            10,
            "shorter than the duration",
        ),
        (
            "[traffic]\nwarmup = \"1s\"\n".to_owned(),
            3,
            10,
            "found kind \"bulk\"",
        ),
        (
            "[traffic]\nkind = \"streams\"\nflows = 1001\n".to_owned(),
            4,
            9,
            "1 to 1000 flows",
        ),
        (
            "[traffic]\nkind = \"long-short\"\nflows = 1\n".to_owned(),
            4,
            9,
            "2 to 1000 flows",
        ),
        (
            "[traffic]\nkind = \"streams\"\nidle = \"1ms\"\n".to_owned(),
            4,
            8,
            "\"long-short\" only",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert_eq!(
            (error.line, error.column),
            (line, column),
            "{text}: {error}"
        );
        assert!(error.message.contains(words), "{text}: {error}");
    }
}

#[test]
fn long_and_short_flows_and_marks_are_read() {
    let scenario = parse(
        "[path]\nrate = \"1gbit\"\naqm = \"step\"\necn = true\nmark = \"500us\"\n\
         [traffic]\nkind = \"long-short\"\nflows = 4\nburst = \"100kib\"\nidle = \"5ms\"\n\
         [[expect]]\nmode = \"baseline\"\nstatistic = \"fct-median\"\nclass = \"short\"\nat_most = \"1s\"\n",
    )
    .unwrap();
    assert_eq!(scenario.path.mark.unwrap().us(), 500);
    assert!(scenario.path.describe().contains("marks from 500us on"));
    let expected = Kind::LongShort {
        flows: 4,
        burst: "100kib".parse().unwrap(),
        idle: "5ms".parse().unwrap(),
    };
    assert_eq!(scenario.traffic.kind, expected);
}

#[test]
fn what_a_run_loads_must_be_one_thing_by_one_name() {
    let with = |load: &str| parse(&format!("[[arm]]\nname = \"a\"\nload = \"{load}\"\n")).unwrap();
    let same = [with("htcp"), with("htcp")];
    assert_eq!(crate::arms::of(&same).unwrap().len(), 1);
    let error = crate::arms::of(&[with("htcp"), with("dctcp")]).unwrap_err();
    assert!(error.to_string().contains("htcp and dctcp as a"), "{error}");
}
