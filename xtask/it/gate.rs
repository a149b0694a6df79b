//! What may not leave the machine, said on the command line: what did not pass, records that contradict themselves, and what is sure to be
//! refused, before any work. The table of the gate's own decisions is beside it, in `stages::gate`.

use std::fs;

use libtest_mimic::{Failed, Trial};
use oci::Digest;

use crate::shop::{Shop, done, refused};
use crate::support::{built, command, ensure, lacks, said, trial_if};

const AMD64: &str = "linux/amd64";
const BOTH: [&str; 2] = [AMD64, "linux/arm64/v8"];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_if("gate::f23_what_did_not_pass_is_refused", lacks(&["mmdebstrap", "docker-registry"]), gate),
        trial_if("gate::what_is_sure_to_be_refused_is_refused_at_once", lacks(&["docker-registry"]), early),
    ]
}

fn gate() -> Result<(), Failed> {
    let shop = Shop::open()?;
    let out = shop.path("copy");
    let status = std::process::Command::new("cp").arg("-a").arg(built()?).arg(&out).status()?;
    ensure(status.success(), "copy the built images")?;
    let to = shop.repository("ours")?.to_string();
    let publish = |more: &[&str]| -> Result<_, Failed> {
        Ok(command(["publish", &to, "dind", "--out"]).arg(&out).args(more).output()?)
    };
    refused(&publish(&[])?, &["expected the registry's base", "stand-in", "--allow-standin"])?;
    refused(&publish(&["--allow-standin"])?, &["linux/amd64 was not judged", "hint:"])?;
    refused(&publish(&["--allow-standin", "--allow-unjudged-platforms"])?, &["was not judged"])?;
    // Another image in the layout than in the record.
    let path = out.join("digests.json");
    let text = fs::read_to_string(&path)?;
    let record: serde_json::Value = serde_json::from_str(&text)?;
    let manifest = record["images"][1]["platforms"][AMD64]["digest"].as_str().ok_or("no digest")?;
    fs::write(&path, text.replace(manifest, &Digest::of(b"another").to_string()))?;
    refused(&publish(&["--allow-standin", "--allow-unjudged"])?, &["is not what was cleared"])?;
    // A record without a tag has nowhere to go, and is not there already.
    let mut untagged = record.clone();
    untagged["images"][1]["tags"] = serde_json::json!([]);
    fs::write(&path, untagged.to_string())?;
    refused(&publish(&["--allow-standin", "--allow-unjudged"])?, &["publish dind: expected a tag in its record"])?;
    // Two images of one tag: each is published by its name, and not both.
    let mut doubled = record.clone();
    doubled["images"][0]["tags"] = doubled["images"][1]["tags"].clone();
    fs::write(&path, doubled.to_string())?;
    let output = command(["publish", &to, "--allow-standin", "--allow-unjudged", "--out"]).arg(&out).output()?;
    refused(&output, &["publish containerd and dind: expected one image of the tag 20-dind, found both"])?;
    fs::write(&path, text)?;
    refused(&command(["publish", &to, "nobody", "--out"]).arg(&out).output()?, &["nobody", "hint:", "dind"])?;
    ensure(shop.published("ours", "20-dind").is_err(), "something was published")?;
    done(&publish(&["--allow-standin", "--allow-unjudged"])?)?;
    shop.published("ours", "20-dind").map(drop)
}

fn early() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.definition("ours", "dind", &BOTH, "")?;
    let twin = fs::read_to_string(shop.path("images/ours.yaml"))?.replace("name: ours", "name: twin");
    fs::create_dir(shop.path("twins"))?;
    fs::copy(shop.path("images/ours.yaml"), shop.path("twins/ours.yaml"))?;
    fs::write(shop.path("twins/twin.yaml"), twin)?;
    let to = shop.repository("dind")?.to_string();
    for (arguments, expected) in [
        (
            &["--all-platforms", "--push", &to][..],
            &["linux/arm64/v8 would not be judged", "--allow-unjudged-platforms"][..],
        ),
        (&["--suite", "none", "--push", &to], &["would not be judged: --suite none"]),
        (&["--suite", "none", "--allow-unjudged-platforms", "--push", &to], &["would not be judged: --suite none"]),
        (&["--base", "standin", "--push", &to], &["--base standin", "--allow-standin"]),
        (&["--offline", "--push", &to], &["--offline"]),
    ] {
        let mut command = command(["build-images", "--images"]);
        let output = command.arg(shop.path("images")).arg("--out").arg(shop.path("out")).args(arguments).output()?;
        refused(&output, expected)?;
    }
    // Where nothing would pass, no permission for single platforms helps, and none is advised.
    for suite in ["smoke", "full"] {
        for more in [&[][..], &["--allow-unjudged-platforms"], &["--allow-unjudged-platforms", "--push-by-digest"]] {
            let mut command = command(["build-images", "--platform", "linux/arm64", "--suite", suite, "--push", &to]);
            command.args(more).arg("--images").arg(shop.path("images")).arg("--out").arg(shop.path("out"));
            let output = command.output()?;
            refused(&output, &["linux/arm64/v8 would not be judged", "hint:", "on a machine that runs it"])?;
            ensure(!said(&output).contains("--allow-unjudged-platforms"), said(&output))?;
        }
    }
    let mut command = command(["build-images", "--push", &to, "--images"]);
    let output = command.arg(shop.path("twins")).arg("--out").arg(shop.path("out")).output()?;
    refused(&output, &["publish ours and twin: expected one image of the tag ours, found both", "hint:"])?;
    ensure(!shop.path("out").exists(), "something was built")
}
