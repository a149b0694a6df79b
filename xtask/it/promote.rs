//! Promotion: what goes through, in how many requests, what is refused, and what a crash at any request leaves.

use std::fs;
use std::process::Output;

use libtest_mimic::{Failed, Trial};
use oci::{Digest, Family, Repository};
use serde_json::{Value, json};

use crate::shop::{Shop, digest_of, done, refused};
use crate::support::{command, ensure, lacks, said, trial_if};
use crate::tripwire::Tripwire;

const AMD64: &str = "linux/amd64";

pub(crate) fn trials() -> Vec<Trial> {
    let registry = lacks(&["docker-registry"]);
    vec![
        trial_if("promote::nothing_changes_without_confirm", registry.clone(), dry_run),
        trial_if("promote::f53_f55_bytes_and_digests_stay_and_a_second_run_does_nothing", registry.clone(), promoted),
        trial_if("promote::where_everything_is_there_in_three_requests", registry.clone(), requests),
        trial_if("promote::into_another_registry", registry.clone(), another_registry),
        trial_if("promote::f54_what_is_not_proved_is_refused", registry.clone(), unproved),
        trial_if("promote::tags_move_by_their_class", registry.clone(), tags),
        trial_if("promote::one_lost_source_is_reported_and_the_rest_goes_on", registry.clone(), lost_source),
        trial_if("promote::bad_files_are_one_clear_error", registry.clone(), bad_files),
        trial_if("promote::a_crash_at_any_request_is_made_good", registry.clone(), crashes),
        trial_if("promote::outdated_says_what_moved", registry, outdated),
    ]
}

/// A shop with one image in `staging`, and a record that says of it what the trial wants: no suite runs here.
pub(crate) struct Counter {
    pub(crate) shop: Shop,
    pub(crate) digest: Digest,
    pub(crate) record: Value,
}

impl Counter {
    pub(crate) fn open() -> Result<Self, Failed> {
        let shop = Shop::open()?;
        shop.base("base", &[AMD64], Family::Oci)?;
        shop.definition("dind", "base", &[AMD64], "floating: true")?;
        done(&shop.push("staging", &[])?)?;
        let mut record = shop.record()?;
        let digest = digest_of(&record, 0)?;
        judge(&mut record);
        let counter = Self { shop, digest, record };
        counter.declare(&counter.digest, "{ 20-dind: floating, 20-1: immutable }")?;
        counter.prove(&counter.record)?;
        Ok(counter)
    }

    pub(crate) fn declare(&self, digest: &Digest, tags: &str) -> Result<(), Failed> {
        let images = format!("images:\n  dind:\n    digest: {digest}\n    tags: {tags}\n");
        self.write(&format!(
            "source: {}\ntarget: {}\n{images}",
            self.shop.repository("staging")?,
            self.shop.repository("users")?
        ))
    }

    pub(crate) fn write(&self, text: &str) -> Result<(), Failed> {
        Ok(fs::write(self.shop.path("promotion.yaml"), text)?)
    }

    pub(crate) fn prove(&self, record: &Value) -> Result<(), Failed> {
        Ok(fs::write(self.shop.path("record.json"), record.to_string())?)
    }

    pub(crate) fn promote(&self, more: &[&str]) -> Result<Output, Failed> {
        let mut command = command(["promote", "--file"]);
        command.arg(self.shop.path("promotion.yaml")).arg("--record").arg(self.shop.path("record.json"));
        Ok(command.args(more).output()?)
    }

    /// Another image in `staging`; `both.json` is then the record of both.
    pub(crate) fn another(&self) -> Result<Digest, Failed> {
        self.shop.definition("dind", "base", &[AMD64], "floating: true\nenv: { ANOTHER: yes }")?;
        done(&self.shop.push("staging", &[])?)?;
        let mut record = self.shop.record()?;
        let digest = digest_of(&record, 0)?;
        judge(&mut record);
        let images = record["images"].as_array_mut().ok_or("no images")?;
        images.push(self.record["images"][0].clone());
        fs::write(self.shop.path("both.json"), record.to_string())?;
        Ok(digest)
    }

    pub(crate) fn names(&self, tag: &str) -> Option<Digest> {
        self.shop.published("users", tag).ok().map(|index| index.digest())
    }
}

/// Writes into a record that the suite passed every platform.
pub(crate) fn judge(record: &mut Value) {
    for platform in record["images"][0]["platforms"].as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
        let digest = platform["digest"].clone();
        platform["verdict"] = json!({
            "image": "dind", "digest": digest, "kind": "dockerd", "selection": "full", "outcome": "passed",
            "rows": [{
                "number": 1, "scenario": "s", "area": "a", "case": "c", "proves": "p", "outcome": "passed", "reason": "", "legs": []
            }],
            "versions": {}, "place": { "engine": "trial", "kernel": "0", "cgroup": "v1" }
        });
        if let Some(platform) = platform.as_object_mut() {
            platform.remove("unjudged");
        }
    }
}

/// An image's record, said of another name.
fn renamed(mut image: Value, name: &str) -> Value {
    image["name"] = name.into();
    for platform in image["platforms"].as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
        platform["verdict"]["image"] = name.into();
    }
    image
}

/// The output of a promotion that refused something: the table on stdout, one error on stderr.
pub(crate) fn denied(output: &Output, code: i32, expected: &[&str]) -> Result<(), Failed> {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(code), format!("expected exit {code}, {}", said(output)))?;
    ensure(output.stdout.starts_with(b"| image |"), format!("expected a table, {}", said(output)))?;
    ensure(errors.matches("error:").count() == 1, format!("expected one error, {}", said(output)))?;
    for text in expected {
        ensure(errors.contains(text), format!("expected `{text}`, {}", said(output)))?;
    }
    Ok(())
}

fn dry_run() -> Result<(), Failed> {
    let mut counter = Counter::open()?;
    counter.shop.requests()?;
    let output = counter.promote(&[])?;
    done(&output)?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    for expected in
        ["| dind |", "20-dind | floating | - |", "20-1 | immutable | - |", &counter.digest.to_string(), "create"]
    {
        ensure(table.contains(expected), format!("expected `{expected}` in\n{table}"))?;
    }
    let requests = counter.shop.requests()?;
    let reads = |request: &String| request.starts_with("HEAD ") || request.starts_with("GET ");
    ensure(requests.iter().all(reads), format!("{requests:#?}"))?;
    ensure(counter.names("20-dind").is_none() && counter.names("20-1").is_none(), "something was promoted")
}

fn promoted() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let first = counter.promote(&["--confirm"])?;
    done(&first)?;
    ensure(String::from_utf8_lossy(&first.stdout).matches("| created |").count() == 2, said(&first))?;
    let users = counter.shop.published("users", "20-1")?;
    ensure(users.digest() == counter.digest && counter.names("20-dind") == Some(counter.digest), "another digest")?;
    ensure(users.bytes() == counter.shop.published("staging", "dind")?.bytes(), "other bytes")?;
    counter.shop.pull("users", &users)?;
    let again = counter.promote(&["--confirm"])?;
    done(&again)?;
    ensure(String::from_utf8_lossy(&again.stdout).matches("there already").count() == 2, said(&again))
}

/// What each kind of promotion costs, as images/README.md has it.
fn requests() -> Result<(), Failed> {
    let mut counter = Counter::open()?;
    let (staged, digest) = (counter.shop.published("staging", "dind")?, counter.digest);
    let child = staged.manifests().first().ok_or("no manifest")?.digest;
    let blobs = counter.shop.pull("staging", &staged)?[0].blobs().count();
    let mut check = |what: &str, expected: &[String]| -> Result<(), Failed> {
        counter.shop.requests()?;
        done(&counter.promote(&["--confirm"])?)?;
        let requests = counter.shop.requests()?;
        ensure(requests == expected, format!("{what}: expected {expected:#?}, found {requests:#?}"))?;
        // For the next case: everything is in the target but the tag.
        counter.declare(&digest, if what == "all of it" { "{ 20-2: floating }" } else { "{ 20-3: immutable }" })
    };
    let users = |method: &str, name: &str| format!("{method} /v2/users/manifests/{name}");
    let at = |method: &str, name: &Digest| users(method, &name.to_string());
    let staging = |name: &Digest| format!("GET /v2/staging/manifests/{name}");
    let mut all = vec![users("HEAD", "20-1"), users("HEAD", "20-dind"), at("GET", &digest), staging(&digest)];
    all.extend([staging(&child), at("PUT", &child)]);
    all.extend(std::iter::repeat_n("POST /v2/users/blobs/uploads/".to_owned(), blobs));
    all.extend([at("PUT", &child), users("HEAD", "20-1"), users("PUT", "20-1"), users("HEAD", "20-1")]);
    all.push(users("PUT", "20-dind"));
    check("all of it", &all)?;
    check("a floating tag", &[users("HEAD", "20-2"), at("GET", &digest), users("PUT", "20-2")])?;
    let immutable = [users("HEAD", "20-3"), at("GET", &digest), users("PUT", "20-3"), users("HEAD", "20-3")];
    check("an immutable tag", &immutable)?;
    check("nothing", &[users("HEAD", "20-3")])
}

fn another_registry() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let far = Shop::open()?;
    let text = fs::read_to_string(counter.shop.path("promotion.yaml"))?;
    let target = far.repository("users")?.to_string();
    counter.write(&text.replace(&counter.shop.repository("users")?.to_string(), &target))?;
    done(&counter.promote(&["--confirm"])?)?;
    let users = far.published("users", "20-1")?;
    ensure(users.digest() == counter.digest, "another digest")?;
    far.pull("users", &users).map(drop)
}

fn unproved() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let other = Digest::of(b"another image");
    let text = counter.record.to_string();
    let digest = counter.digest.to_string();
    let edited = |from: &str, to: &str| -> Result<Value, Failed> {
        let edited = text.replace(from, to);
        ensure(edited != text, format!("{from} is not in the record"))?;
        Ok(serde_json::from_str(&edited)?)
    };
    let failed = edited("\"outcome\":\"passed\"", "\"outcome\":\"failed\"")?;
    for (record, code, expected) in [
        (edited(&digest, &other.to_string())?, 2, &["find the record of", "found none"][..]),
        (failed, 1, &["expected that linux/amd64 passed", "failed"]),
        (edited("\"source\":\"registry\"", "\"source\":\"standin\"")?, 2, &["expected the registry's base"]),
        (edited("\"name\":\"dind\"", "\"name\":\"other\"")?, 2, &["expected image dind, found other"]),
        (edited("\"rows\":[{", "\"rows\":[],\"was\":[{")?, 2, &["expected that linux/amd64 passed"]),
        (counter.shop.record()?, 2, &["linux/amd64 was not judged"]),
    ] {
        counter.prove(&record)?;
        denied(&counter.promote(&["--confirm"])?, code, expected)?;
        ensure(counter.names("20-dind").is_none(), "something was promoted")?;
    }
    // What is no record is an error before anything is planned.
    for (text, expected) in
        [(&text[..text.len() / 2], "record.json"), ("{}", "expected schema"), ("[]", "expected schema")]
    {
        fs::write(counter.shop.path("record.json"), text)?;
        refused(&counter.promote(&["--confirm"])?, &[expected])?;
    }
    // The control: with the record as it was, the same command promotes.
    counter.prove(&counter.record)?;
    done(&counter.promote(&["--confirm"])?)?;
    ensure(counter.names("20-dind") == Some(counter.digest), "nothing was promoted")
}

fn tags() -> Result<(), Failed> {
    let counter = Counter::open()?;
    done(&counter.promote(&["--confirm"])?)?;
    // A newer image.
    counter.shop.definition("dind", "base", &[AMD64], "floating: true\nenv: { NEWER: yes }")?;
    done(&counter.shop.push("staging", &[])?)?;
    let mut record = counter.shop.record()?;
    let newer = digest_of(&record, 0)?;
    judge(&mut record);
    counter.prove(&record)?;
    counter.declare(&newer, "{ 20-1: immutable, 20-3: immutable }")?;
    let (old, new) = (counter.digest.to_string(), newer.to_string());
    denied(&counter.promote(&["--confirm", "--move-floating"])?, 2, &["20-1", "immutable", &old, &new, "hint:"])?;
    ensure(counter.names("20-1") == Some(counter.digest), "an immutable tag moved")?;
    ensure(counter.names("20-3").is_none(), "half an image was promoted")?;
    counter.declare(&newer, "{ 20-dind: floating, 20-3: immutable }")?;
    denied(&counter.promote(&["--confirm"])?, 2, &["20-dind", "floating", &old, &new, "--move-floating"])?;
    ensure(counter.names("20-dind") == Some(counter.digest), "a floating tag moved untold")?;
    let moved = counter.promote(&["--confirm", "--move-floating"])?;
    done(&moved)?;
    ensure(String::from_utf8_lossy(&moved.stdout).contains("| moved |"), said(&moved))?;
    ensure(counter.names("20-dind") == Some(newer) && counter.names("20-3") == Some(newer), "nothing moved")?;
    ensure(counter.names("20-1") == Some(counter.digest), "an immutable tag moved")?;
    // What was immutable once stays so, whatever the file says now: the records of what was promoted remember.
    let known = format!("{}:20-1", counter.shop.repository("users")?);
    let kept = json!({
        "schema": 1, "images": [], "immutable": { known: old }, "reports": { "markdown": "digests.md", "junit": "junit.xml" }
    });
    fs::write(counter.shop.path("digests.json"), kept.to_string())?;
    counter.declare(&newer, "{ 20-1: floating }")?;
    let expected = ["20-1", "immutable before", &old, &new, "hint:"];
    denied(&counter.promote(&["--confirm", "--move-floating"])?, 2, &expected)?;
    ensure(counter.names("20-1") == Some(counter.digest), "an immutable tag moved")
}

fn lost_source() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let lost = Digest::of(b"lost");
    let mut record = counter.record.clone();
    let mut other = record["images"][0].clone();
    other["digest"] = lost.to_string().into();
    record["images"].as_array_mut().ok_or("no images")?.push(renamed(other, "gone"));
    counter.prove(&record)?;
    let text = fs::read_to_string(counter.shop.path("promotion.yaml"))?;
    counter.write(&format!("{text}  gone:\n    digest: {lost}\n    tags: {{ gone-1: immutable }}\n"))?;
    denied(&counter.promote(&["--confirm"])?, 2, &["promote gone", &lost.to_string(), "not found"])?;
    ensure(counter.names("20-1") == Some(counter.digest) && counter.names("gone-1").is_none(), "the rest did not go on")
}

fn bad_files() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let text = fs::read_to_string(counter.shop.path("promotion.yaml"))?;
    for (from, to, expected) in [
        ("{ 20-dind", "{ 20-1: immutable, 20-dind", &["promotion.yaml", "duplicate"][..]),
        ("source:", "sauce:", &["promotion.yaml", "sauce"]),
    ] {
        counter.write(&text.replace(from, to))?;
        refused(&counter.promote(&["--confirm"])?, expected)?;
    }
    // What is wrong with one image is the error of that one.
    for (number, (from, to, expected)) in [
        ("digest:", "digset:", &["promotion.yaml", "images.dind", "digset"][..]),
        ("sha256:", "sha256:x", &["promotion.yaml", "images.dind"]),
        ("floating", "movable", &["promotion.yaml", "images.dind", "movable"]),
    ]
    .into_iter()
    .enumerate()
    {
        let sound = text.split_once("images:\n").ok_or("no images")?.1.replace("20-", &format!("sound-{number}-"));
        let both = format!("{}{}", text.replace(from, to), sound.replace("  dind:", "  sound:"));
        let mut record = counter.record.clone();
        record["images"] = json!([renamed(record["images"][0].clone(), "sound")]);
        counter.prove(&record)?;
        counter.write(&both)?;
        denied(&counter.promote(&["--confirm"])?, 2, expected)?;
        let tag = format!("sound-{number}-1");
        ensure(counter.names(&tag) == Some(counter.digest), format!("{expected:?}: the rest did not go on"))?;
    }
    counter.prove(&counter.record)?;
    counter.write(&text)?;
    refused(&counter.promote(&["nobody"])?, &["nobody", "hint:", "dind"])?;
    ensure(counter.names("20-1").is_none(), "something was promoted")
}

/// Whatever a tag names is there whole.
fn whole(shop: &Shop, repository: &str) -> Result<(), Failed> {
    for tag in ["20-dind", "20-1"] {
        if let Ok(index) = shop.published(repository, tag) {
            shop.pull(repository, &index)?;
        }
    }
    Ok(())
}

fn crashes() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let tripwire = Tripwire::to(counter.shop.registry.host())?;
    let text = fs::read_to_string(counter.shop.path("promotion.yaml"))?;
    let through = text.replace(&counter.shop.wire.host(), &tripwire.host());
    let run = |repository: &str, limit: usize| -> Result<Option<i32>, Failed> {
        counter.write(&through.replace("/users", &format!("/{repository}")))?;
        tripwire.arm(limit);
        let mut command = command(["promote", "--confirm", "--file"]);
        command.arg(counter.shop.path("promotion.yaml")).arg("--record").arg(counter.shop.path("record.json"));
        let mut child = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn()?;
        tripwire.watch(child.id());
        Ok(child.wait()?.code())
    };
    ensure(run("undisturbed", 0)? == Some(0), "the undisturbed promotion failed")?;
    let requests = tripwire.seen();
    ensure(requests > 5, format!("expected a promotion of several requests, found {requests}"))?;
    for limit in 1..=requests {
        let repository = format!("crash-{limit}");
        ensure(run(&repository, limit)?.is_none(), format!("it survived request {limit} of {requests}"))?;
        whole(&counter.shop, &repository)?;
        ensure(run(&repository, 0)? == Some(0), format!("the run after a crash at request {limit} failed"))?;
        for tag in ["20-dind", "20-1"] {
            let index = counter.shop.published(&repository, tag)?;
            ensure(index.digest() == counter.digest, format!("{tag} after a crash at request {limit}"))?;
        }
        whole(&counter.shop, &repository)?;
    }
    Ok(())
}

fn outdated() -> Result<(), Failed> {
    let mut shop = Shop::open()?;
    let base = shop.base("base", &[AMD64, "linux/arm64/v8"], Family::Oci)?;
    shop.definition("dind", "base", &[AMD64], "floating: true")?;
    done(&shop.push("staging", &[])?)?;
    ensure(look(&shop, &[])?.stdout.is_empty(), "nothing has moved")?;
    let lock = fs::read_to_string(shop.path("images/bases.lock"))?;
    let moved = newer(&shop.repository("base")?, &base.index)?;
    shop.requests()?;
    let said = String::from_utf8(look(&shop, &[])?.stdout)?;
    ensure(said == format!("{}:1 {} {moved}\n", shop.repository("base")?, base.index.digest()), said)?;
    let requests = shop.requests()?;
    ensure(requests == ["HEAD /v2/base/manifests/1"], format!("{requests:#?}"))?;
    ensure(fs::read_to_string(shop.path("images/bases.lock"))? == lock, "the lock was rewritten")?;
    look(&shop, &["--update"])?;
    let updated = lock.replace(&base.index.digest().to_string(), &moved.to_string());
    ensure(fs::read_to_string(shop.path("images/bases.lock"))? == updated, "lock")?;
    ensure(look(&shop, &[])?.stdout.is_empty(), "nothing has moved since")
}

fn look(shop: &Shop, more: &[&str]) -> Result<Output, Failed> {
    let output = command(["outdated", "--images"]).arg(shop.path("images")).args(more).output()?;
    done(&output)?;
    Ok(output)
}

/// Puts another index of the same children under the base's tag.
fn newer(base: &Repository, index: &oci::Index) -> Result<Digest, Failed> {
    let newer = oci::Index::annotated(Family::Oci, index.manifests(), &[("newer", "yes")])?;
    let client = oci::Client::new(oci::Options::default())?;
    let tagged = oci::Reference::Tagged(base.tagged("1")?);
    Ok(client.put_manifest(&tagged, newer.media_type(), newer.bytes())?)
}
