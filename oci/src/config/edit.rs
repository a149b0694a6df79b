//! Edits of image configs, on an ordered JSON value. An edit changes the keys that it names and nothing else; keys that nobody
//! here has heard of survive in their place.

use serde_json::{Map, Value, json};

use super::{History, ImageConfig};
use crate::digest::DiffId;
use crate::document::print;
use crate::timestamp::Timestamp;

/// A new config in the making; see [`ImageConfig::edit`].
#[derive(Clone, Debug)]
pub struct ConfigEdit {
    value: Value,
}

impl ConfigEdit {
    pub(super) fn of(value: Value) -> Self {
        Self { value }
    }

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

    /// Keeps of `config.Labels` only those whose key `keep` wants.
    pub fn retain_labels(&mut self, keep: impl Fn(&str) -> bool) -> &mut Self {
        // Not by index: that one makes what is absent.
        if let Some(Value::Object(labels)) = self.value.pointer_mut("/config/Labels") {
            labels.retain(|key, _| keep(key));
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
        if let Some(Value::Array(env)) = self.value.pointer_mut("/config/Env") {
            env.retain(|entry| keep(env_key(entry)));
        }
        self
    }
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

    use super::super::keys;
    use super::super::tests::{ODD, odd};
    use super::*;
    use crate::platform::Platform;

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
    fn f11_f12_an_edit_changes_the_named_keys_only() {
        let layer = ["/history", "/rootfs/diff_ids"];
        type Edit = fn(&mut ConfigEdit) -> &mut ConfigEdit;
        let cases: [(Edit, &[&str]); 14] = [
            (|edit| edit, &[]),
            (|edit| edit.entrypoint(&["/init", "--"]), &["/config/Entrypoint"]),
            (|edit| edit.cmd::<&str>(&[]), &["/config/Cmd"]),
            (|edit| edit.clear_cmd(), &["/config/Cmd"]),
            (|edit| edit.set_env("TINI_SUBREAPER", ""), &["/config/Env"]),
            (|edit| edit.keep_env(&["PATH"]), &["/config/Env"]),
            (|edit| edit.drop_env(&["absent"]), &[]),
            (|edit| edit.volumes(&["/var/lib/docker"]), &[]),
            (|edit| edit.volumes(&["/x"]), &["/config/Volumes//var/lib/docker", "/config/Volumes//x"]),
            (|edit| edit.clear_exposed_ports(), &["/config/ExposedPorts"]),
            (|edit| edit.label("a", "b"), &["/config/Labels/a"]),
            (|edit| edit.retain_labels(|key| key != "maintainer"), &["/config/Labels/maintainer"]),
            (|edit| edit.append_layer(DiffId::of(b"x"), &history()), &layer),
            (|edit| edit.replace_layers(DiffId::of(b"x"), &history()), &layer),
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
    fn f14_f15_one_layer_is_one_diff_id_and_one_line_of_history() {
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
    fn f13_history_that_does_not_match_stays_so() {
        let json = ODD.replacen(r#""created_by": "/bin/sh"#, r#""empty_layer": true, "created_by": "/bin/sh"#, 1);
        let base = ImageConfig::parse(json.into_bytes()).unwrap();
        assert_eq!((base.history_layers(), base.diff_ids().len()), (1, 2));
        let derived = base.edit().append_layer(DiffId::of(b"x"), &history()).finish();
        assert_eq!((derived.history_layers(), derived.diff_ids().len()), (2, 3));
    }

    #[test]
    fn a_bare_config_can_be_edited() {
        let bare = ImageConfig::parse(br#"{"os":"linux","architecture":"amd64"}"#.to_vec()).unwrap();
        assert_eq!((bare.created(), bare.env().len(), bare.diff_ids().len()), (None, 0, 0));
        assert_eq!(bare.edit().keep_env(&[]).retain_labels(|_| false).finish().bytes(), bare.bytes());
        let edited =
            bare.edit().set_env("A", "1").set_env("A", "2").append_layer(DiffId::of(b"x"), &history()).finish();
        assert_eq!((edited.env(), edited.history_layers()), (vec!["A=2"], 1));
        let created = Timestamp::from_epoch(0).unwrap();
        let new = ImageConfig::new(&Platform::parse("linux/arm/v7").unwrap(), created);
        assert_eq!((new.platform().to_string().as_str(), new.created()), ("linux/arm/v7", Some(created)));
    }
}
