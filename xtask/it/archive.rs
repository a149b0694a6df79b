//! `--docker-archive`: a real dockerd 20.10 loads and runs what we write, skopeo reads it in both of its faces, and it is the same bytes
//! each time.

use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use oci::Digest;
use serde_json::Value;

use crate::host::Host;
use crate::support::{command, ensure, folder, lacks, run, said, trial, trial_if};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("archive::what_cannot_be_archived_is_refused_before_any_work", refused),
        trial_if("archive::the_same_bytes_twice_and_skopeo_reads_them", lacks(&["mmdebstrap", "skopeo"]), skopeo),
        trial_if("archive::f59_dockerd_20_10_loads_and_runs_it", lacks(&["mmdebstrap"]), dockerd),
    ]
}

/// Builds dind on the stand-in, unjudged, with an archive.
fn build(out: &Path, archive: &Path, arguments: &[&str]) -> Result<(), Failed> {
    let mut command = command(["build-images", "dind", "--base", "standin", "--suite", "none", "--docker-archive"]);
    let output = command.arg(archive).arg("--out").arg(out).args(arguments).output()?;
    ensure(output.status.code() == Some(0), said(&output))
}

fn refused() -> Result<(), Failed> {
    let folder = folder()?;
    let archive = folder.path().join("image.tar");
    for (arguments, expected) in [
        (&["--plan"][..], "expected one image, found 3"),
        (&["--plan", "dind", "containerd"], "hint: name one of containerd, dind"),
    ] {
        let output = command(["build-images", "--docker-archive"]).arg(&archive).args(arguments).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure(output.status.code() == Some(2) && errors.contains(expected), said(&output))?;
    }
    let output =
        command(["build-images", "--plan", "--all-platforms", "dind", "--docker-archive"]).arg(&archive).output()?;
    let plan: Value = serde_json::from_slice(&output.stdout)?;
    ensure(plan["docker_archive"]["file"] == archive.display().to_string(), format!("{}", plan["docker_archive"]))?;
    ensure(!archive.exists(), "the plan wrote the archive")
}

fn skopeo() -> Result<(), Failed> {
    let folder = folder()?;
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name).with_extension("tar"));
    build(&folder.path().join("out"), &first, &[])?;
    build(&folder.path().join("out"), &second, &["--fresh"])?;
    let digests = [Digest::of(&fs::read(&first)?), Digest::of(&fs::read(&second)?)];
    ensure(digests[0] == digests[1], format!("expected the same bytes twice, found {digests:?}"))?;

    for image in
        [format!("docker-archive:{}:dind:20-dind", first.display()), format!("oci-archive:{}:20-dind", first.display())]
    {
        let config: Value = serde_json::from_str(&run(Command::new("skopeo").args(["inspect", "--config", &image]))?)?;
        ensure(config["config"]["Entrypoint"][0] == "/usr/local/sbin/dind-init", format!("{image}: {config}"))?;
        // Every blob is read, and held to its digest or diff id.
        let copy = format!("dir:{}", folder.path().join("copy").display());
        run(Command::new("skopeo").args(["copy", "--quiet", &image, &copy]))?;
        fs::remove_dir_all(folder.path().join("copy"))?;
    }
    Ok(())
}

fn dockerd() -> Result<(), Failed> {
    let engine = crate::support::engine()?;
    let folder = folder()?;
    let archive = folder.path().join("dind.tar");
    build(&folder.path().join("out"), &archive, &[])?;
    // The control: the layout alone, which this dockerd must refuse, or nothing is shown by its loading ours.
    let plain = folder.path().join("layout.tar");
    run(Command::new("tar")
        .arg("--create")
        .arg("--file")
        .arg(&plain)
        .arg("--directory")
        .arg(folder.path().join("out/dind"))
        .arg("."))?;

    let files = vec![(archive, "/mnt/dind.tar".into()), (plain, "/mnt/layout.tar".into())];
    let host = Host::dockerd(&engine, files)?;
    let version = host.exec(&["docker", "version", "--format", "{{.Server.Version}}"])?;
    ensure(version.starts_with("20.10."), format!("expected dockerd 20.10, found {version}"))?;
    ensure(
        host.exec(&["docker", "load", "--input", "/mnt/layout.tar"]).is_err(),
        "this dockerd reads a plain layout: the control is blind",
    )?;
    let loaded = host.exec(&["docker", "load", "--input", "/mnt/dind.tar"])?;
    ensure(loaded.contains("Loaded image: dind:20-dind"), format!("docker load said {loaded}"))?;
    let run =
        ["docker", "run", "--rm", "--network", "none", "dind:20-dind", "sh", "-c", "cat /proc/1/comm; readlink /bin"];
    let said = host.exec(&run)?;
    ensure(said == "dind-init\nusr/bin\n", format!("expected dind-init as PID 1 and /bin a link, found {said:?}"))?;
    host.remove()?;
    Ok(())
}
