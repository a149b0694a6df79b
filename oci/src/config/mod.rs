//! Image configs, kept as received and read through typed getters. Edits are [`ConfigEdit`].

mod edit;

use serde_json::{Value, json};

pub use self::edit::ConfigEdit;

use crate::descriptor::{Descriptor, OCI_CONFIG, platform_from_json};
use crate::digest::{DiffId, Digest};
use crate::error::{Error, Result};
use crate::json;
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
        let value: Value = json::parse(&bytes).map_err(|problem| Error::document(&subject, problem))?;
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
        ConfigEdit::of(self.value.clone())
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
        ConfigEdit::of(value).finish()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A config with what other tools lose: unknown keys, keys of Docker's alone, odd kinds of empty.
    pub(super) const ODD: &str = include_str!("../../tests/data/odd-config.json");

    pub(super) fn odd() -> ImageConfig {
        ImageConfig::parse(ODD.as_bytes().to_vec()).unwrap()
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
    fn refuses_all_else() {
        for (bad, why) in [
            ("", "found nothing"),
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
