//! Controllers and models of other versions of Thalweg: refused, with both versions, and nothing is
//! half done.

use std::fs;
use std::path::Path;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};
use thalweg_bpf_types::raw;

use thalweg_testbed::cc::{failure, is_offered, row, success};
use thalweg_testbed::{Bed, manifest_path, plain, privileged, unique};

/// Where every version has its number in the settings, bytes (thalweg_rate_abi.h).
const VERSION_AT: usize = 12;

fn value(map: &MapHandle) -> Vec<u8> {
    map.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap()
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_controller_of_another_version_is_not_read() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-version"), "");
    let model = manifest_path("models/proportional.safetensors");
    let model = model.to_str().unwrap();
    let name = unique("v");
    success(&bed, &["cc", "load", model, "--name", &name]);
    assert_eq!(row(&bed, &name)["model"]["name"], "proportional");
    let own = bed.pin.join("cc").join(&name);
    let pinned = own.join("map_settings");
    let ours = raw::THALWEG_RATE_VERSION;
    let bytes = size_of::<raw::thalweg_rate_settings>();
    let is_refused = |version: u32, size: usize| {
        let words = format!(
            "has version {version} ({size} bytes of settings), this Thalweg's has {ours} \
             ({bytes} bytes)"
        );
        let listed = row(&bed, &name);
        assert!(listed["model"].is_null(), "{listed}");
        assert!(
            listed["note"].as_str().unwrap().contains(&words),
            "{listed}"
        );
        let said = failure(&bed, &["cc", "trace", "--name", &name], 1);
        assert!(said.contains(&words), "{said}");
        assert!(
            said.contains(&format!("`thalweg cc swap {name} MODEL`")),
            "{said}"
        );
        let trace = MapHandle::from_pinned_path(own.join("map_trace")).unwrap();
        assert!(value(&trace).iter().all(|&byte| byte == 0), "traced");
    };

    // An earlier program, whose settings had no version, and a later one.
    let map = MapHandle::from_pinned_path(&pinned).unwrap();
    for version in [0, ours + 1] {
        let mut settings = value(&map);
        settings[VERSION_AT..VERSION_AT + 4].copy_from_slice(&version.to_ne_bytes());
        map.update(&[0; 4], &settings, MapFlags::ANY).unwrap();
        is_refused(version, bytes);
    }
    // Another layout, whatever its version.
    for (version, size) in [(ours + 1, bytes + 8), (ours, bytes - 8)] {
        fs::remove_file(&pinned).unwrap();
        pin_settings(&pinned, version, size);
        is_refused(version, size);
    }
    // It is replaced whole, and what replaces it is of this version.
    success(&bed, &["cc", "swap", &name, model]);
    let listed = row(&bed, &name);
    assert_eq!(listed["model"]["name"], "proportional", "{listed}");
    assert!(listed["note"].is_null(), "{listed}");
    success(&bed, &["cc", "unload", &name]);
}

/// Settings of a version in a map of so many bytes.
fn pin_settings(path: &Path, version: u32, size: usize) {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let bytes = u32::try_from(size).unwrap();
    let mut map =
        MapHandle::create(MapType::Array, Some("settings"), 4, bytes, 1, &options).unwrap();
    let mut settings = vec![0; size];
    settings[VERSION_AT..VERSION_AT + 4].copy_from_slice(&version.to_ne_bytes());
    map.update(&[0; 4], &settings, MapFlags::ANY).unwrap();
    map.pin(path).unwrap();
}

#[test]
#[cfg_attr(not(privileged), ignore = "needs root")]
fn a_model_of_a_later_format_is_refused_whole() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(&plain("cc-format"), "");
    let present = manifest_path("models/proportional.safetensors");
    let text = |version: u8| [br#""format_version":""#.as_slice(), &[version], b"\""].concat();
    let (now, later) = (text(b'1'), text(b'2'));
    let mut bytes = fs::read(&present).unwrap();
    let at = bytes.windows(now.len()).position(|window| window == now);
    let at = at.expect("the file's format is 1");
    bytes[at..at + later.len()].copy_from_slice(&later);
    let file = bed.directory.path().join("later.safetensors");
    fs::write(&file, &bytes).unwrap();
    let file = file.to_str().unwrap();

    let name = unique("w");
    let words = r#"metadata `format_version`: found "2", expected "1""#;
    let said = failure(&bed, &["cc", "load", file, "--name", &name], 1);
    assert!(said.contains(words), "{said}");
    assert!(!bed.pin.exists() && !is_offered(&name));

    success(
        &bed,
        &["cc", "load", present.to_str().unwrap(), "--name", &name],
    );
    let before = row(&bed, &name);
    let program = thalweg_testbed::map_id(&bed.pin.join("cc").join(&name).join("struct_ops"));
    let said = failure(&bed, &["cc", "swap", &name, file], 1);
    assert!(said.contains(words), "{said}");
    assert_eq!(row(&bed, &name), before);
    let after = thalweg_testbed::map_id(&bed.pin.join("cc").join(&name).join("struct_ops"));
    assert_eq!(after, program);
    success(&bed, &["cc", "unload", &name]);
}
