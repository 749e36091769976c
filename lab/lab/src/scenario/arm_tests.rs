use thalweg_units::Faults;

use crate::scenario::Scenario;

/// Parses a scenario in a folder with a model and an object.
fn parse(text: &str) -> Result<Scenario, Faults> {
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
fn faults_of_arms_have_their_place() {
    let arm = "[[arm]]\nname = \"a\"\nload = \"htcp\"\n";
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
            "expected it beside a model",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        let [fault] = &error.0[..] else {
            panic!("{text}: {error}")
        };
        let place = (fault.at.line, fault.at.column);
        assert_eq!(place, (line, column), "{text}: {error}");
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
}

#[test]
fn what_a_run_loads_must_be_one_thing_by_one_name() {
    let with = |load: &str| parse(&format!("[[arm]]\nname = \"a\"\nload = \"{load}\"\n")).unwrap();
    let same = [with("htcp"), with("htcp")];
    assert_eq!(crate::arms::distinct_arms(&same).unwrap().len(), 1);
    let error = crate::arms::distinct_arms(&[with("htcp"), with("dctcp")]).unwrap_err();
    assert!(error.to_string().contains("htcp and dctcp as a"), "{error}");
}
