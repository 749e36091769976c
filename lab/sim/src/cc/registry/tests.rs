use super::*;

fn error(text: &str) -> String {
    text.parse::<Spec>().unwrap_err().to_string()
}

#[test]
fn names_are_found_and_all_different() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_name(kind.name()).unwrap(), *kind);
        assert_eq!(kind.name().parse::<Spec>().unwrap().name(), kind.name());
        assert_eq!(kind.spec().to_string(), kind.name());
    }
}

#[test]
fn published_parameters_are_in_range() {
    for kind in Kind::ALL {
        let spec = kind.with_parameters(kind.spec().parameters()).unwrap();
        assert_eq!(spec.to_string(), kind.name());
    }
}

#[test]
fn no_parameter_is_anything() {
    for kind in Kind::ALL {
        for (field, default) in kind.spec().parameters() {
            if default.is_bool() || field == "byte_counter_bytes" || field == "flows" {
                // Any whole number is a valid count.
                continue;
            }
            let extremes = match default {
                toml::Value::Integer(_) => vec![toml::Value::Integer(1_000_000)],
                _ => [f64::NAN, -1.0, 1e12].map(toml::Value::Float).to_vec(),
            };
            for value in extremes {
                let given = toml::Table::from_iter([(field.clone(), value.clone())]);
                let error = kind.with_parameters(given).unwrap_err();
                let SpecError::Parameter { controller, source } = &error else {
                    panic!("{kind} {field} {value}: {error}");
                };
                assert_eq!((*controller, source.field), (kind.name(), field.as_str()));
            }
        }
    }
}

#[test]
fn parameters_from_the_command_line() {
    let spec: Spec = "swift:base_target_us=25, timeouts_to_reset=3"
        .parse()
        .unwrap();
    let Spec::Swift(parameters) = &spec else {
        panic!("{spec}");
    };
    let expected = swift::Parameters {
        base_target_us: 25.0,
        timeouts_to_reset: 3,
        ..swift::Parameters::default()
    };
    assert_eq!(*parameters, expected);
    let text = spec.to_string();
    assert_eq!(text, "swift:base_target_us=25.0,timeouts_to_reset=3");
    let again: Spec = text.parse().unwrap();
    assert_eq!(again.parameters(), spec.parameters());
}

#[test]
fn variants_differ_in_what_is_not_given() {
    let spec: Spec = "dcqcn-paper:g=0.5".parse().unwrap();
    let Spec::DcqcnPaper(parameters) = spec else {
        panic!("{spec}");
    };
    assert_eq!(parameters.g, 0.5);
    assert_eq!(parameters.byte_counter_bytes, 10_000_000);
}

#[test]
fn from_a_scenario_file() {
    #[derive(Debug, Deserialize)]
    struct Scenario {
        controller: Spec,
    }
    let text = "controller = { name = \"hpcc\", eta = 0.9, own_link = true }";
    let scenario: Scenario = toml::from_str(text).unwrap();
    assert_eq!(
        scenario.controller.to_string(),
        "hpcc:eta=0.9,own_link=true"
    );
    let scenario: Scenario = toml::from_str("controller = \"fixed:fraction=1\"").unwrap();
    assert_eq!(scenario.controller.to_string(), "fixed");
    for (text, expected) in [
        ("controller = { eta = 0.9 }", "a table with `name`"),
        ("controller = 3", "a name, or a table"),
        ("controller = \"vegas\"", "no controller is called `vegas`"),
    ] {
        let error = toml::from_str::<Scenario>(text).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        // The faulty value's place.
        assert!(error.to_string().contains("line 1, column 14"), "{error}");
    }
}

#[test]
fn faults_say_what_is_expected() {
    assert_eq!(
        error("vegas"),
        "no controller is called `vegas`; there are dcqcn, dcqcn-paper, hpcc, swift, \
         timely, dctcp, cubic, fixed, proportional, learned, thalweg-rl"
    );
    assert_eq!(
        error("timely:gain=1"),
        "timely has no parameter `gain`; there are additive_mbps, alpha, beta, high_us, \
         hyper_after, hyper_factor, initial_fraction, low_us, min_rtt_us"
    );
    assert_eq!(
        error("dctcp:g=2"),
        "dctcp: `g` is 2; a number from 0.000001 to 1 is expected"
    );
    assert_eq!(
        error("dctcp:g=true"),
        "dctcp: `g` is true; a number is expected, such as 0.0625"
    );
    assert_eq!(
        error("hpcc:max_stage=1.5"),
        "hpcc: `max_stage` is 1.5; a whole number is expected, such as 5"
    );
    assert_eq!(
        error("hpcc:own_link=1"),
        "hpcc: `own_link` is 1; true or false is expected, such as false"
    );
    assert_eq!(
        error("dctcp:g=nan"),
        "dctcp: `g` is NaN; a number from 0.000001 to 1 is expected"
    );
    for (text, part) in [
        ("dctcp:g", "g"),
        ("dctcp:g=", "g="),
        ("dctcp:=1", "=1"),
        ("dctcp:g=0.5,", ""),
        ("dctcp:g=half", "g=half"),
    ] {
        let expected = format!("`{part}` is not of the form parameter=value");
        assert!(error(text).starts_with(&expected), "{}", error(text));
    }
    assert_eq!(error("dctcp:g=0.5,g=0.5"), "`g` is given twice");
    assert!(error("hpcc:max_stage=-1").starts_with("hpcc: "));
}

#[test]
fn the_manual_has_all_parameters() {
    let manual = include_str!("../../../../../docs/reference/controllers.md");
    for kind in Kind::ALL {
        let name = format!("`{kind}`");
        let section = (manual.split("\n## "))
            .find(|section| {
                section
                    .lines()
                    .next()
                    .is_some_and(|line| line.contains(&name))
            })
            .unwrap_or_else(|| panic!("no section for {kind}"));
        let rows: Vec<Vec<&str>> = (section.lines())
            .filter(|line| line.starts_with('|'))
            .map(|line| line.split('|').map(str::trim).collect())
            .collect();
        // Each variant has a column under its name.
        let column = (rows[0].iter().position(|cell| *cell == name)).unwrap_or(2);
        let listed: toml::Table = rows[2..]
            .iter()
            .map(|row| {
                (
                    row[1].trim_matches('`').to_owned(),
                    parse_scalar(row[column]).unwrap(),
                )
            })
            .collect();
        assert_eq!(listed, kind.spec().parameters(), "{kind}");
    }
}

#[test]
fn a_flow_takes_little_memory() {
    // 8192 flows of any kind fit into a second-level cache of 2 MiB.
    assert!(
        size_of::<AnyController>() <= 256,
        "{}",
        size_of::<AnyController>()
    );
}
