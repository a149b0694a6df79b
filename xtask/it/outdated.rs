//! `outdated` where something is missing: a folder, a lock, a base. What it says of bases that are there is shown in `promote`.

use std::fs;

use libtest_mimic::{Failed, Trial};
use oci::{Digest, Family};

use crate::shop::{Shop, done, refused};
use crate::support::{command, ensure, folder, lacks, said, trial, trial_if};

const AMD64: &str = "linux/amd64";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("outdated::a_folder_without_a_lock_is_one_clear_error", no_lock),
        trial_if("outdated::a_base_that_is_gone_does_not_stop_the_rest", lacks(&["docker-registry"]), one_gone),
    ]
}

fn no_lock() -> Result<(), Failed> {
    let place = folder()?;
    let images = place.path().join("images");
    let outdated = || command(["outdated", "--images"]).arg(&images).output();
    let lock = images.join("bases.lock").display().to_string();
    refused(&outdated()?, &["find lock", &lock, "hint: --images names the folder"])?;
    fs::create_dir(&images)?;
    refused(&outdated()?, &["find lock", &lock, "hint: cargo xtask build-images writes one"])?;
    // The control: a lock of comments alone names no base.
    fs::write(images.join("bases.lock"), "# nothing yet\n")?;
    let output = outdated()?;
    done(&output)?;
    ensure(String::from_utf8_lossy(&output.stderr).contains("0 of 0 bases have moved"), said(&output))
}

fn one_gone() -> Result<(), Failed> {
    let shop = Shop::open()?;
    let gone = shop.repository("a-base-that-is-gone")?;
    let there = shop.base("base", &[AMD64], Family::Oci)?.index.digest();
    let before = Digest::of(b"what it was");
    let entry =
        |base: &oci::Repository| format!("{base}:1:\n  index: {before}\n  platforms: {{ {AMD64}: {before} }}\n");
    let path = shop.path("images/bases.lock");
    fs::write(&path, entry(&gone) + &entry(&shop.repository("base")?))?;
    for more in [&[][..], &["--update"]] {
        let output = command(["outdated", "--images"]).arg(shop.path("images")).args(more).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.code() == Some(2), format!("expected exit 2, {}", said(&output)))?;
        ensure(errors.matches("error:").count() == 1, format!("expected one error, {}", said(&output)))?;
        let expected = format!("look at base {gone}:1: the registry has no such tag");
        ensure(errors.contains(&expected), format!("expected `{expected}`, {}", said(&output)))?;
        let moved = format!("{}:1 {before} {there}\n", shop.repository("base")?);
        ensure(String::from_utf8_lossy(&output.stdout) == moved, format!("expected {moved}, {}", said(&output)))?;
    }
    let lock = fs::read_to_string(&path)?;
    ensure(lock.contains(&there.to_string()), format!("the base that is there was not locked anew\n{lock}"))?;
    ensure(lock.matches(&before.to_string()).count() == 2, format!("the entry of the other is another one\n{lock}"))
}
