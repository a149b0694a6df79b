//! `judge`: what cannot be judged as it was published is refused by name, and the record stays as it was. That it passes what passed is shown
//! by the workflows' steps.

use std::fs;

use libtest_mimic::{Failed, Trial};
use oci::{Digest, Family};
use serde_json::{Value, json};

use crate::shop::{Shop, done, refused};
use crate::support::{command, ensure, lacks, trial_if};

const AMD64: &str = "linux/amd64";

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial_if("pulled::what_is_not_as_recorded_is_refused", lacks(&["docker-registry"]), refusals)]
}

fn refusals() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.base("base", &[AMD64], Family::Oci)?;
    shop.definition("dind", "base", &[AMD64], "")?;
    done(&shop.push("staging", &[])?)?;
    let record = shop.record()?;
    let other = Digest::of(b"another").to_string();
    let path = shop.path("record.json");
    let refuses = |record: &Value, expected: &[&str]| -> Result<(), Failed> {
        let text = record.to_string();
        fs::write(&path, &text)?;
        let output = command(["judge"]).arg(&path).env("XTASK_IMAGES", shop.path("images")).output()?;
        refused(&output, expected)?;
        ensure(fs::read_to_string(&path)? == text, "the record is another one")
    };
    let changed = |at: &str, value: Value| -> Result<Value, Failed> {
        let mut record = record.clone();
        *record.pointer_mut(at).ok_or(format!("no {at}"))? = value;
        Ok(record)
    };
    let manifest = record["images"][0]["platforms"][AMD64]["digest"].as_str().ok_or("no digest")?;
    refuses(&changed("/images/0/published", Value::Null)?, &["judge dind", "not published"])?;
    refuses(&changed("/images/0/name", json!("nobody"))?, &["nobody", "the images are dind"])?;
    refuses(&changed("/images/0/base/source", json!("standin"))?, &["judge dind", "expected a base from a registry"])?;
    refuses(&changed("/images/0/digest", json!(other))?, &[&other, "not found"])?;
    let place = "/images/0/platforms/linux~1amd64";
    refuses(&changed(&format!("{place}/digest"), json!(other))?, &[AMD64, &other, "found", manifest])?;
    refuses(&changed(&format!("{place}/base"), json!(other))?, &[&other, "not found"])?;
    refuses(
        &changed(&format!("{place}/base"), json!(shop.published("base", "1")?.digest().to_string()))?,
        &["found an index"],
    )?;
    let platform = record.pointer(place).ok_or("no platform")?.clone();
    let foreign = changed("/images/0/platforms", json!({ "linux/arm64/v8": platform }))?;
    refuses(&foreign, &["judge dind", AMD64, "found other platforms"])?;
    // A layer that is damaged where it was published.
    let manifest = shop.registry.blob(&Digest::parse(manifest)?);
    let layers: Value = serde_json::from_slice(&fs::read(manifest)?)?;
    let layer = layers["layers"][0]["digest"].as_str().ok_or("no layer")?;
    fs::write(shop.registry.blob(&Digest::parse(layer)?), "damaged")?;
    refuses(&record, &[layer])
}
