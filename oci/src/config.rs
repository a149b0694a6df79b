//! Image configs: read through typed getters, edited as an ordered JSON value. An edit changes the keys that it names and
//! nothing else; keys that nobody here has heard of survive in their place.

use serde_json::{Map, Value, json};

use crate::descriptor::{Descriptor, OCI_CONFIG, platform_from_json};
use crate::digest::{DiffId, Digest};
use crate::error::{Error, Result};
use crate::manifest::print;
use crate::platform::Platform;
use crate::timestamp::Timestamp;

/// Largest config that is read.
pub const CONFIG_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The config of an image. Spec: image-spec `config.md`; Docker's "Image Specification v1.2".
#[derive(Clone, Debug)]
pub struct ImageConfig {
    bytes: Vec<u8>,
    value: Value,
    platform: Platform,
    diff_ids: Vec<DiffId>,
}

/// One line of an image's `history`, for a layer that we add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// When the layer was made.
    pub created: Timestamp,
    /// The command that made it.
    pub created_by: String,
    /// What it is for.
    pub comment: String,
}

/// A new config in the making; see [`ImageConfig::edit`].
#[derive(Clone, Debug)]
pub struct ConfigEdit {
    value: Value,
}

impl ImageConfig {
    /// Parses a config. The bytes are kept.
    ///
    /// # Errors
    /// [`Error::TooLarge`] above [`CONFIG_BYTES_MAX`]; [`Error::Document`] if it is no JSON object, or if a key that has a
    /// getter here holds the wrong kind of value.
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        if bytes.len() as u64 > CONFIG_BYTES_MAX {
            let subject = format!("image config {}", Digest::of(&bytes));
            return Err(Error::TooLarge { subject, limit: CONFIG_BYTES_MAX });
        }
        Self::read(bytes)
    }

    fn read(bytes: Vec<u8>) -> Result<Self> {
        let subject = format!("image config {}", Digest::of(&bytes));
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| Error::document(&subject, error))?;
        check_shape(&value).map_err(|problem| Error::document(&subject, problem))?;
        let platform = platform_from_json(&value).ok_or_else(|| {
            Error::document(&subject, "expected os and architecture, found none or an impossible one")
        })?;
        let diff_ids = strings(&value["rootfs"]["diff_ids"]).into_iter().map(DiffId::parse).collect::<Result<_>>();
        let diff_ids = diff_ids.map_err(|error| Error::document(&subject, format!("rootfs.diff_ids: {error}")))?;
        Ok(Self { bytes, value, platform, diff_ids })
    }

    /// The bytes as received, or as edited.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The digest of the bytes: Docker's image id.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.bytes)
    }

    /// Names these bytes by their OCI type.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor::of(OCI_CONFIG, &self.bytes)
    }

    /// `os`, `architecture` and `variant`.
    pub fn platform(&self) -> &Platform {
        &self.platform
    }

    /// `rootfs.diff_ids`, lowest layer first.
    pub fn diff_ids(&self) -> &[DiffId] {
        &self.diff_ids
    }

    /// `created`; none if it is absent or before 1970, as Go's zero time is.
    pub fn created(&self) -> Option<Timestamp> {
        Timestamp::parse(self.value["created"].as_str()?).ok()
    }

    /// `config.Entrypoint`; empty if absent.
    pub fn entrypoint(&self) -> Vec<&str> {
        strings(&self.value["config"]["Entrypoint"])
    }

    /// `config.Cmd`; empty if absent.
    pub fn cmd(&self) -> Vec<&str> {
        strings(&self.value["config"]["Cmd"])
    }

    /// `config.Env`, each `KEY=VALUE`; empty if absent.
    pub fn env(&self) -> Vec<&str> {
        strings(&self.value["config"]["Env"])
    }

    /// `PATH` of `config.Env`.
    pub fn path(&self) -> Option<&str> {
        self.env().into_iter().find_map(|entry| entry.strip_prefix("PATH="))
    }

    /// `config.User`; empty means root.
    pub fn user(&self) -> &str {
        self.value["config"]["User"].as_str().unwrap_or_default()
    }

    /// `config.WorkingDir`; empty means `/`.
    pub fn working_dir(&self) -> &str {
        self.value["config"]["WorkingDir"].as_str().unwrap_or_default()
    }

    /// The keys of `config.Volumes`; empty if absent.
    pub fn volumes(&self) -> Vec<&str> {
        keys(&self.value["config"]["Volumes"])
    }

    /// The keys of `config.ExposedPorts`, such as `2376/tcp`; empty if absent.
    pub fn exposed_ports(&self) -> Vec<&str> {
        keys(&self.value["config"]["ExposedPorts"])
    }

    /// `config.StopSignal`, such as `SIGTERM` or `15`.
    pub fn stop_signal(&self) -> Option<&str> {
        self.value["config"]["StopSignal"].as_str().filter(|signal| !signal.is_empty())
    }

    /// A label of `config.Labels`.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.value["config"]["Labels"][key].as_str()
    }

    /// How many entries of `history` stand for a layer. Should equal the number of diff ids; bases exist where it does not.
    pub fn history_layers(&self) -> usize {
        let history = self.value["history"].as_array().map_or(&[][..], Vec::as_slice);
        history.iter().filter(|entry| entry["empty_layer"] != true).count()
    }

    /// A new config that differs from this one only in what is edited.
    pub fn edit(&self) -> ConfigEdit {
        ConfigEdit { value: self.value.clone() }
    }

    /// A new config for an image without layers or settings, to be edited.
    pub fn new(platform: &Platform, created: Timestamp) -> Self {
        let mut value = json!({
            "created": created.to_string(),
            "architecture": platform.architecture,
            "os": platform.os,
        });
        if let Some(variant) = &platform.variant {
            value["variant"] = json!(variant);
        }
        value["config"] = json!({});
        value["rootfs"] = json!({"type": "layers", "diff_ids": []});
        value["history"] = json!([]);
        ConfigEdit { value }.finish()
    }
}

impl ConfigEdit {
    /// Sets `created`.
    pub fn created(&mut self, created: Timestamp) -> &mut Self {
        self.value["created"] = json!(created.to_string());
        self
    }

    /// Sets `config.Entrypoint`; `Cmd` stays (Dockerfile's `ENTRYPOINT` would clear it: call [`Self::clear_cmd`]).
    pub fn entrypoint<S: AsRef<str>>(&mut self, arguments: &[S]) -> &mut Self {
        self.set("Entrypoint", list(arguments))
    }

    /// Sets `config.Cmd`.
    pub fn cmd<S: AsRef<str>>(&mut self, arguments: &[S]) -> &mut Self {
        self.set("Cmd", list(arguments))
    }

    /// Removes `config.Cmd`.
    pub fn clear_cmd(&mut self) -> &mut Self {
        self.remove("Cmd")
    }

    /// Sets one variable of `config.Env`: in its place if it is there, else at the end.
    pub fn set_env(&mut self, key: &str, value: &str) -> &mut Self {
        let entry = json!(format!("{key}={value}"));
        let env = array_at(object_at(&mut self.value, "config"), "Env");
        match env.iter_mut().find(|entry| env_key(entry) == key) {
            Some(place) => *place = entry,
            None => env.push(entry),
        }
        self
    }

    /// Keeps of `config.Env` only the variables named in `keys`.
    pub fn keep_env(&mut self, keys: &[&str]) -> &mut Self {
        self.retain_env(|key| keys.contains(&key))
    }

    /// Removes from `config.Env` the variables named in `keys`.
    pub fn drop_env(&mut self, keys: &[&str]) -> &mut Self {
        self.retain_env(|key| !keys.contains(&key))
    }

    /// Sets `config.User`.
    pub fn user(&mut self, user: &str) -> &mut Self {
        self.set("User", json!(user))
    }

    /// Sets `config.WorkingDir`.
    pub fn working_dir(&mut self, dir: &str) -> &mut Self {
        self.set("WorkingDir", json!(dir))
    }

    /// Sets `config.StopSignal`.
    pub fn stop_signal(&mut self, signal: &str) -> &mut Self {
        self.set("StopSignal", json!(signal))
    }

    /// Sets `config.Volumes` to exactly `paths`; removes it if there are none.
    pub fn volumes<S: AsRef<str>>(&mut self, paths: &[S]) -> &mut Self {
        self.set_of("Volumes", paths)
    }

    /// Sets `config.ExposedPorts` to exactly `ports`, such as `2376/tcp`; removes it if there are none.
    pub fn exposed_ports<S: AsRef<str>>(&mut self, ports: &[S]) -> &mut Self {
        self.set_of("ExposedPorts", ports)
    }

    /// Removes `config.ExposedPorts`.
    pub fn clear_exposed_ports(&mut self) -> &mut Self {
        self.remove("ExposedPorts")
    }

    /// Sets one label of `config.Labels`.
    pub fn label(&mut self, key: &str, value: &str) -> &mut Self {
        let config = object_at(&mut self.value, "config");
        let labels = config.entry("Labels").or_insert_with(|| json!({}));
        as_object(labels).insert(key.to_owned(), json!(value));
        self
    }

    /// Removes one label of `config.Labels`.
    pub fn drop_label(&mut self, key: &str) -> &mut Self {
        if let Some(Value::Object(labels)) = object_at(&mut self.value, "config").get_mut("Labels") {
            labels.shift_remove(key);
        }
        self
    }

    /// Adds one layer above all others: one diff id, one line of history.
    pub fn append_layer(&mut self, diff_id: DiffId, history: &History) -> &mut Self {
        array_at(object_at(&mut self.value, "rootfs"), "diff_ids").push(json!(diff_id));
        array_at(as_object(&mut self.value), "history").push(json!({
            "created": history.created.to_string(),
            "created_by": history.created_by,
            "comment": history.comment,
        }));
        self
    }

    /// Puts one layer in the place of all layers and of all history.
    pub fn replace_layers(&mut self, diff_id: DiffId, history: &History) -> &mut Self {
        array_at(object_at(&mut self.value, "rootfs"), "diff_ids").clear();
        array_at(as_object(&mut self.value), "history").clear();
        self.append_layer(diff_id, history)
    }

    /// The new config: compact JSON, keys in the order of the one it came from.
    pub fn finish(&self) -> ImageConfig {
        ImageConfig::read(print(&self.value)).expect("edits keep a config well-formed")
    }

    fn set(&mut self, key: &str, value: Value) -> &mut Self {
        object_at(&mut self.value, "config").insert(key.to_owned(), value);
        self
    }

    /// A set in Go's JSON: an object whose values are empty objects.
    fn set_of<S: AsRef<str>>(&mut self, key: &str, members: &[S]) -> &mut Self {
        if members.is_empty() {
            return self.remove(key);
        }
        let members = members.iter().map(|member| (member.as_ref().to_owned(), json!({}))).collect();
        self.set(key, Value::Object(members))
    }

    fn remove(&mut self, key: &str) -> &mut Self {
        // Not `remove`: that one moves the last key into the gap.
        object_at(&mut self.value, "config").shift_remove(key);
        self
    }

    fn retain_env(&mut self, keep: impl Fn(&str) -> bool) -> &mut Self {
        if let Value::Array(env) = &mut self.value["config"]["Env"] {
            env.retain(|entry| keep(env_key(entry)));
        }
        self
    }
}

/// Checks the kind of each key that a getter or an edit relies on. Null is what Go writes for an absent list or map.
fn check_shape(value: &Value) -> Result<(), String> {
    let object = |value: &Value| value.is_object() || value.is_null();
    let text = |value: &Value| value.is_string() || value.is_null();
    let list =
        |value: &Value| value.is_null() || value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
    let check = |place: &str, fits: bool, expected: &str| {
        if fits { Ok(()) } else { Err(format!("{place}: expected {expected}")) }
    };
    check("the document", value.is_object(), "a JSON object")?;
    check("created", text(&value["created"]), "a string")?;
    check("history", value["history"].is_array() || value["history"].is_null(), "a list")?;
    check("rootfs", object(&value["rootfs"]), "an object")?;
    check("rootfs.diff_ids", list(&value["rootfs"]["diff_ids"]), "a list of strings")?;
    let config = &value["config"];
    check("config", object(config), "an object")?;
    for key in ["Entrypoint", "Cmd", "Env"] {
        check(&format!("config.{key}"), list(&config[key]), "a list of strings")?;
    }
    for key in ["Volumes", "ExposedPorts", "Labels"] {
        check(&format!("config.{key}"), object(&config[key]), "an object")?;
    }
    for key in ["User", "WorkingDir", "StopSignal"] {
        check(&format!("config.{key}"), text(&config[key]), "a string")?;
    }
    Ok(())
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().map_or(Vec::new(), |list| list.iter().filter_map(Value::as_str).collect())
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().map_or(Vec::new(), |object| object.keys().map(String::as_str).collect())
}

fn list<S: AsRef<str>>(arguments: &[S]) -> Value {
    arguments.iter().map(|argument| json!(argument.as_ref())).collect()
}

fn env_key(entry: &Value) -> &str {
    let entry = entry.as_str().unwrap_or_default();
    entry.split_once('=').map_or(entry, |(key, _)| key)
}

/// The object at `key`, made if it is absent or null.
fn object_at<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    as_object(as_object(value).entry(key).or_insert_with(|| json!({})))
}

fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut().expect("check_shape holds for this key")
}

/// The list at `key`, made if it is absent or null.
fn array_at<'a>(object: &'a mut Map<String, Value>, key: &str) -> &'a mut Vec<Value> {
    let list = object.entry(key).or_insert_with(|| json!([]));
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut().expect("check_shape holds for this key")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A config with what other tools lose: unknown keys, keys of Docker's alone, odd kinds of empty.
    const ODD: &str = include_str!("../tests/data/odd-config.json");

    fn odd() -> ImageConfig {
        ImageConfig::parse(ODD.as_bytes().to_vec()).unwrap()
    }

    fn history() -> History {
        let created = Timestamp::from_epoch(1_674_187_200).unwrap();
        History { created, created_by: "dind-init".to_owned(), comment: "reaps".to_owned() }
    }

    /// The paths at which two values differ; a list counts as one value.
    fn difference(left: &Value, right: &Value, path: &str, found: &mut BTreeSet<String>) {
        match (left, right) {
            (Value::Object(a), Value::Object(b)) => {
                for key in a.keys().chain(b.keys()) {
                    let (a, b) = (a.get(key), b.get(key));
                    if a.is_none() || b.is_none() {
                        found.insert(format!("{path}/{key}"));
                    }
                    let null = Value::Null;
                    difference(a.unwrap_or(&null), b.unwrap_or(&null), &format!("{path}/{key}"), found);
                }
            }
            (a, b) if a != b => drop(found.insert(path.to_owned())),
            _ => {}
        }
    }

    fn changed(edit: &ConfigEdit) -> Vec<String> {
        let mut found = BTreeSet::new();
        difference(&odd().value, &serde_json::from_slice(edit.finish().bytes()).unwrap(), "", &mut found);
        found.into_iter().collect()
    }

    #[test]
    fn an_edit_changes_the_named_keys_only() {
        let layer = ["/history", "/rootfs/diff_ids"];
        type Edit = fn(&mut ConfigEdit);
        let cases: [(Edit, &[&str]); 13] = [
            (|_| {}, &[]),
            (|edit| drop(edit.entrypoint(&["/init", "--"])), &["/config/Entrypoint"]),
            (|edit| drop(edit.cmd::<&str>(&[])), &["/config/Cmd"]),
            (|edit| drop(edit.clear_cmd()), &["/config/Cmd"]),
            (|edit| drop(edit.set_env("TINI_SUBREAPER", "")), &["/config/Env"]),
            (|edit| drop(edit.keep_env(&["PATH"])), &["/config/Env"]),
            (|edit| drop(edit.drop_env(&["absent"])), &[]),
            (|edit| drop(edit.volumes(&["/var/lib/docker"])), &[]),
            (|edit| drop(edit.volumes(&["/x"])), &["/config/Volumes//var/lib/docker", "/config/Volumes//x"]),
            (|edit| drop(edit.clear_exposed_ports()), &["/config/ExposedPorts"]),
            (
                |edit| drop(edit.label("a", "b").drop_label("maintainer")),
                &["/config/Labels/a", "/config/Labels/maintainer"],
            ),
            (|edit| drop(edit.append_layer(DiffId::of(b"x"), &history())), &layer),
            (|edit| drop(edit.replace_layers(DiffId::of(b"x"), &history())), &layer),
        ];
        for (edit, expected) in cases {
            let mut config = odd().edit();
            edit(&mut config);
            assert_eq!(changed(&config), expected);
        }
    }

    #[test]
    fn keys_keep_their_order() {
        let mut edit = odd().edit();
        edit.clear_exposed_ports().entrypoint(&["/init"]).append_layer(DiffId::of(b"x"), &history());
        let edited: Value = serde_json::from_slice(edit.finish().bytes()).unwrap();
        let without_ports = |value: &Value| -> Vec<String> {
            keys(&value["config"]).into_iter().filter(|key| *key != "ExposedPorts").map(str::to_owned).collect()
        };
        assert_eq!(keys(&edited), keys(&odd().value));
        assert_eq!(without_ports(&edited), without_ports(&odd().value));
    }

    #[test]
    fn one_layer_is_one_diff_id_and_one_line_of_history() {
        let base = odd();
        let derived = base.edit().append_layer(DiffId::of(b"x"), &history()).finish();
        assert_eq!(derived.diff_ids(), [base.diff_ids(), &[DiffId::of(b"x")]].concat());
        assert_eq!(derived.history_layers(), base.history_layers() + 1);
        assert_eq!(derived.value["history"][0], base.value["history"][0]);
        let line = derived.value["history"].as_array().unwrap().last().unwrap().to_string();
        assert_eq!(line, r#"{"created":"2023-01-20T04:00:00Z","created_by":"dind-init","comment":"reaps"}"#);
        let carved = base.edit().replace_layers(DiffId::of(b"x"), &history()).finish();
        assert_eq!((carved.diff_ids(), carved.history_layers()), (&[DiffId::of(b"x")][..], 1));
    }

    #[test]
    fn getters_read_what_is_there() {
        let config = odd();
        assert_eq!(config.bytes(), ODD.as_bytes());
        assert_eq!(config.entrypoint(), ["dockerd-entrypoint.sh"]);
        assert_eq!(config.cmd(), Vec::<&str>::new());
        assert_eq!(config.path(), Some("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
        assert_eq!(config.volumes(), ["/var/lib/docker"]);
        assert_eq!(config.exposed_ports(), ["2375/tcp", "2376/tcp"]);
        assert_eq!((config.user(), config.working_dir(), config.stop_signal()), ("", "", Some("SIGQUIT")));
        assert_eq!(config.platform().to_string(), "linux/arm64/v8");
        assert_eq!(config.created().unwrap().to_string(), "2021-06-24T00:33:58Z");
        assert_eq!(config.label("maintainer"), Some("docker <x@example.org>"));
    }

    #[test]
    fn a_bare_config_can_be_edited() {
        let bare = ImageConfig::parse(br#"{"os":"linux","architecture":"amd64"}"#.to_vec()).unwrap();
        assert_eq!((bare.created(), bare.env().len(), bare.diff_ids().len()), (None, 0, 0));
        let edited =
            bare.edit().set_env("A", "1").set_env("A", "2").append_layer(DiffId::of(b"x"), &history()).finish();
        assert_eq!((edited.env(), edited.history_layers()), (vec!["A=2"], 1));
        let created = Timestamp::from_epoch(0).unwrap();
        let new = ImageConfig::new(&Platform::parse("linux/arm/v7").unwrap(), created);
        assert_eq!((new.platform().to_string().as_str(), new.created()), ("linux/arm/v7", Some(created)));
    }

    #[test]
    fn refuses_all_else() {
        for (bad, why) in [
            ("", "EOF"),
            ("[]", "JSON object"),
            ("{}", "os and architecture"),
            (r#"{"os":"linux","architecture":"a/b/c"}"#, "os and architecture"),
            (r#"{"os":"linux","architecture":"amd64","config":[]}"#, "config: expected an object"),
            (
                r#"{"os":"linux","architecture":"amd64","config":{"Entrypoint":"sh"}}"#,
                "config.Entrypoint: expected a list",
            ),
            (r#"{"os":"linux","architecture":"amd64","config":{"Env":[1]}}"#, "config.Env: expected a list of strings"),
            (
                r#"{"os":"linux","architecture":"amd64","config":{"Volumes":["/x"]}}"#,
                "config.Volumes: expected an object",
            ),
            (
                r#"{"os":"linux","architecture":"amd64","rootfs":{"diff_ids":["md5:x"]}}"#,
                "rootfs.diff_ids: parse diff id",
            ),
            (r#"{"os":"linux","architecture":"amd64","history":{}}"#, "history: expected a list"),
        ] {
            let error = ImageConfig::parse(bad.as_bytes().to_vec()).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        let large = vec![b' '; CONFIG_BYTES_MAX as usize + 1];
        assert!(matches!(ImageConfig::parse(large), Err(Error::TooLarge { .. })));
    }
}
