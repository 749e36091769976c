//! `[fleet]` of the configuration.

use std::path::PathBuf;

use thalweg_fleet::keys::PublicKey;
use thalweg_fleet::{Identity, Name, NameError, Settings};
use thalweg_units::schema::{self, Form};

use crate::config::reader::{Key, PATH_MAX, Section};

/// Accepted form of a name of the fleet.
const NAME: &str = "1 to 63 of a-z, A-Z, 0-9, - and _";

/// `[fleet]`: agents that share reports of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetMember {
    /// `servers`: NATS servers; any of them will do.
    pub servers: Vec<String>,
    /// `name`: the agent's name in the fleet; `None` = `auto`, the host's.
    pub name: Option<Name>,
    /// `nkey`: file with the agent's seed.
    pub nkey: Option<PathBuf>,
    /// `credentials`: credentials file, instead of a seed.
    pub credentials: Option<PathBuf>,
    /// `ca`: certificates of the servers' CA; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// `share`: reports its own measurements to other agents.
    pub share: bool,
    /// `take`: uses the reports of other agents.
    pub take: bool,
    /// `labels`: labels whose policies the agent obeys, beside `all`; the first that has a policy
    /// wins.
    pub labels: Vec<Name>,
    /// `keys`: public keys whose policies the agent obeys.
    pub keys: Vec<PublicKey>,
}

impl FleetMember {
    /// Reads the section; `None`: the agent is in no fleet.
    pub fn read(section: &mut Section<'_>) -> Option<Self> {
        let servers = section.texts(
            ("servers", "NATS servers, as `tls://nats.example.com:4222`; any of them will do. None: no fleet."),
            16, ("server", "servers"), schema::text(), parse_server);
        let member = Self {
            name: name_or_auto(section, ("name", "The agent's name in the fleet, by which the server permits it to write. Of a host's name, dots become `_` and `_` becomes `__`.")),
            nkey: section.path_or_none(("nkey", "File with the agent's seed (`agent.nk`), mode 0600."), PATH_MAX),
            credentials: section.path_or_none(("credentials", "Credentials file, instead of a seed."), PATH_MAX),
            ca: section.path_or_none(("ca", "Certificates of the servers' CA; else the system's."), PATH_MAX),
            share: section.boolean(("share", "Reports what it measures itself."), true),
            take: section.boolean(("take", "Others' reports decide where the agent knows nothing itself."), true),
            labels: section.texts(("labels", "Labels whose [policies](../guide/fleet.md#6-policies) the agent obeys, beside `all`. The first one that has a policy wins."), 15, ("label", "labels"), name_form(), parse_label),
            keys: section.texts(("keys", "Public keys (`thalweg fleet key`) whose policies the agent obeys. Without any it obeys none."), 16, ("key", "keys"), schema::text(), parse_key),
            servers,
        };
        (!member.servers.is_empty()).then_some(member)
    }

    /// Settings of the fleet's client.
    ///
    /// # Errors
    /// The host's name cannot be an agent's.
    pub fn settings(&self) -> Result<Settings, NameError> {
        let agent = match &self.name {
            Some(name) => name.clone(),
            None => Name::of_host(&host_name())?,
        };
        let identity = match (&self.nkey, &self.credentials) {
            (Some(file), _) => Identity::Nkey(file.clone()),
            (None, Some(file)) => Identity::Credentials(file.clone()),
            (None, None) => Identity::None,
        };
        let mut settings = Settings::new(self.servers.clone(), agent, identity);
        settings.ca.clone_from(&self.ca);
        settings.take = self.take;
        settings.labels = self.labels.iter().cloned().chain([Name::all()]).collect();
        settings.keys.clone_from(&self.keys);
        Ok(settings)
    }
}

fn parse_server(text: &str) -> Result<String, String> {
    match thalweg_fleet::check_server(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(_) => Err("tls://HOST:PORT, or nats://HOST:PORT on this machine".to_owned()),
    }
}

/// A label; `all` is none of them, as each agent has it.
fn parse_label(text: &str) -> Result<Name, String> {
    match Name::new(text) {
        Ok(name) if name != Name::all() => Ok(name),
        Ok(_) => Err("another label: each agent has this one".to_owned()),
        Err(_) => Err(NAME.to_owned()),
    }
}

fn parse_key(text: &str) -> Result<PublicKey, String> {
    let wrong = |_| "a public key of policies (M and 55 characters)".to_owned();
    PublicKey::parse(text).map_err(wrong)
}

/// The agent's name, or `None` for `auto`.
fn name_or_auto(section: &mut Section<'_>, key: Key) -> Option<Name> {
    let expected = format!("\"auto\", the name of the host, or {NAME}");
    let show = |name: &Option<Name>| format!("\"{}\"", name.as_ref().map_or("auto", Name::as_str));
    let form = schema::any_of([schema::only("auto"), name_form()]);
    let read = section.take(key, &expected, form, None, show, |value| {
        match value.as_str()? {
            "auto" => Some(None),
            name => Name::new(name).ok().map(Some),
        }
    });
    read.value
}

fn name_form() -> Form {
    schema::of_characters("A-Za-z0-9_-", 63)
}

fn host_name() -> String {
    let names = nix::sys::utsname::uname();
    names.map_or_else(
        |_| String::new(),
        |it| it.nodename().to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by unwrap")]

    use std::path::Path;

    use super::super::member;
    use super::*;
    use crate::config::Config;

    /// The section with values other than the defaults.
    const FULL: &str = r#"[fleet]
servers = ["tls://nats.example.com:4222"]
name = "web1"
nkey = "/etc/agent.nk"
credentials = "/etc/agent.creds"
ca = "/etc/ca.pem"
share = false
take = false
labels = ["web", "site-a"]
keys = ["MCD7D3BTJUNEN6JY54U5EZ2ETX5YE6LRPQ6WGIGF75NSD73YM7OFYNET"]
"#;

    #[test]
    fn each_key_takes_effect() {
        let (config, keys) = Config::describe(FULL, Path::new("t.toml")).unwrap();
        let fleet = member(&*config.features.0["fleet"]).unwrap();
        assert_eq!(fleet.servers, ["tls://nats.example.com:4222"]);
        assert_eq!(fleet.nkey, Some(PathBuf::from("/etc/agent.nk")));
        assert_eq!(fleet.credentials, Some(PathBuf::from("/etc/agent.creds")));
        assert_eq!(fleet.ca, Some(PathBuf::from("/etc/ca.pem")));
        assert!(!fleet.share && !fleet.take);
        let settings = fleet.settings().unwrap();
        assert_eq!(settings.agent.as_str(), "web1");
        let labels: Vec<&str> = settings.labels.iter().map(|it| it.as_str()).collect();
        assert_eq!(labels, ["web", "site-a", "all"]);
        assert_eq!(settings.keys.len(), 1);

        let own = keys.iter().filter(|it| it.key.starts_with("fleet."));
        let shown: Vec<String> = own
            .map(|it| format!("{} = {}\n", &it.key["fleet.".len()..], it.value))
            .collect();
        assert_eq!(format!("[fleet]\n{}", shown.concat()), FULL);
        assert!(member(&*Config::default().features.0["fleet"]).is_none());
    }

    #[test]
    fn values_of_another_form_are_refused_at_their_line() {
        let read = |key: &str, value: &str| {
            let text = format!("[fleet]\n{key} = {value}\n");
            Config::parse(&text, Path::new("t.toml"))
        };
        for (key, right, wrong) in [
            (
                "servers",
                r#"[] ["nats://127.0.0.1:1","nats://localhost:2"]"#,
                r#""tls://a:4222" ["nats://192.0.2.1:4222"] ["a:4222"] [7] ["tls://a:1","tls://a:1"]"#,
            ),
            (
                "labels",
                r#"[] ["web-1_a","b"]"#,
                r#""web" ["all"] ["a.b"] [7] ["a","a"]"#,
            ),
            ("keys", "[]", r#""M" ["M"] [""] [7]"#),
            ("name", r#""auto" "web-1_a""#, r#""" "a.b" "a/b" 7 []"#),
        ] {
            for value in right.split(' ') {
                assert!(read(key, value).is_ok(), "{key} = {value}");
            }
            for value in wrong.split(' ') {
                let fault = read(key, value).unwrap_err().to_string();
                assert!(fault.starts_with("t.toml:2:"), "{fault}");
                assert!(fault.contains(&format!(": fleet.{key}: found ")), "{fault}");
            }
        }
    }
}
