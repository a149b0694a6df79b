//! The command line as a contract: help, plan, and one clear error with exit code 2 for each kind of bad input. Needs neither root (but for
//! the trial of places) nor network.

use std::fs;

use expect_test::expect_file;
use libtest_mimic::{Failed, Trial};

use crate::support::{command, definitions, ensure, folder, lacks, repository, said, trial, trial_if, xtask};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("cli::help_is_a_contract", help),
        trial("cli::the_plan_is_printed_and_nothing_is_done", plan),
        trial("cli::a_bad_definition_is_one_clear_error", bad_definitions),
        trial("cli::a_bad_lock_is_one_clear_error", bad_locks),
        trial("cli::bad_arguments_are_one_clear_error", bad_arguments),
        trial("cli::a_bad_epoch_is_one_clear_error", bad_epoch),
        trial_if("cli::a_place_that_cannot_be_written_is_one_clear_error", lacks(&[]), bad_places),
    ]
}

fn help() -> Result<(), Failed> {
    for (arguments, file) in [(&["--help"][..], "help.txt"), (&["build-images", "--help"], "build-images.txt")] {
        let output = xtask(arguments)?;
        ensure(output.status.code() == Some(0), said(&output))?;
        expect_file![repository().join("xtask/it/expected").join(file)].assert_eq(&String::from_utf8(output.stdout)?);
    }
    Ok(())
}

fn plan() -> Result<(), Failed> {
    let folder = folder()?;
    let out = folder.path().join("out");
    let output = command(["build-images", "--plan", "--platform", "linux/amd64", "--base", "standin", "--out"])
        .arg(&out)
        .output()?;
    ensure(output.status.code() == Some(0), said(&output))?;
    ensure(!out.exists(), "the plan made its output folder")?;
    let printed = String::from_utf8(output.stdout)?
        .replace(&out.display().to_string(), "OUT")
        .replace(&repository().display().to_string(), "REPOSITORY");
    expect_file![repository().join("xtask/it/expected/plan.json")].assert_eq(&printed);
    Ok(())
}

/// Runs `build-images --plan` on the repository's definitions after one replacement in `file`; expects exit 2 and `expected` on stderr.
fn check_definition(file: &str, from: &str, to: &str, expected: &str) -> Result<(), Failed> {
    let folder = folder()?;
    let images = definitions(folder.path())?;
    let path = images.join(file);
    let text = fs::read_to_string(&path)?;
    ensure(text.contains(from), format!("{file} no longer contains {from:?}: mend the case"))?;
    fs::write(&path, text.replacen(from, to, 1))?;
    let output = command(["build-images", "--plan", "--locked", "--images"]).arg(&images).output()?;
    refused(&output, expected, &format!("{file}: {from:?} -> {to:?}"))
}

/// One error line, exit 2, nothing on stdout.
fn refused(output: &std::process::Output, expected: &str, case: &str) -> Result<(), Failed> {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(2), format!("{case}: expected exit 2\n{}", said(output)))?;
    ensure(errors.contains(expected), format!("{case}: expected `{expected}`\n{}", said(output)))?;
    ensure(output.stdout.is_empty(), format!("{case}: stdout is data, but holds\n{}", said(output)))?;
    ensure(errors.matches("error:").count() == 1, format!("{case}: expected one error\n{}", said(output)))?;
    ensure(!errors.contains("panicked"), format!("{case}: panicked\n{}", said(output)))
}

fn bad_definitions() -> Result<(), Failed> {
    let entrypoint = "entrypoint: [/usr/local/sbin/dind-init, --, dockerd-entrypoint.sh]\n";
    check_definition("dind.yaml", "guards:", "guard:", "unknown field `guard`")?;
    check_definition("dind.yaml", "runs: dockerd", "runs: dockerd\nruns: dockerd", "runs")?;
    check_definition("dind.yaml", "TINI_SUBREAPER: \"\"", "A: x\n  A: y", "duplicate")?;
    check_definition("dind.yaml", entrypoint, "", "missing field `entrypoint`")?;
    check_definition("dind.yaml", entrypoint, "entrypoint: []\n", "found an empty list")?;
    check_definition(
        "dind.yaml",
        entrypoint,
        "entrypoint: [dockerd-entrypoint.sh]\n",
        "expected /usr/local/sbin/dind-init",
    )?;
    check_definition("dind.yaml", "base: docker:20-dind", "base: Docker:20-dind", "Docker")?;
    check_definition("dind.yaml", "base: docker:20-dind", "base: docker", "docker")?;
    check_definition("dind.yaml", "base: docker:20-dind", "base: docker@sha256:12", "sha256:12")?;
    check_definition("dind.yaml", "base: docker:20-dind", "base: docker:21-dind", "not in bases.lock")?;
    check_definition("dind.yaml", "name: dind", "name: dint", "expected the file's name `dind`")?;
    check_definition("dind.yaml", "linux/amd64", "linux", "linux")?;
    check_definition("dind.yaml", "tags: [20-dind]", "tags: ['a b']", "a b")?;
    check_definition("dind.yaml", "runs: dockerd", "runs: podman", "unknown variant `podman`")?;
    check_definition("dind.yaml", "guards: [dockerd, containerd]", "guards: [sh]", "found `sh`")?;
    check_definition(
        "dind.yaml",
        "tags: [20-dind]",
        "tags: [20-dind, 20-dind]",
        "tags: expected each once, found 20-dind twice",
    )?;
    check_definition(
        "dind.yaml",
        "tags: [20-dind]",
        "tags: [20.10]",
        "tags: expected text, found the YAML value 20.1",
    )?;
    check_definition("dind.yaml", "linux/amd64,", "linux/arm64,", "expected each once, found linux/arm64/v8 twice")?;
    check_definition(
        "dind.yaml",
        "[dockerd, containerd]",
        "[dockerd, dockerd]",
        "guards: expected each once, found dockerd twice",
    )?;
    check_definition("dind.yaml", "TINI_SUBREAPER: \"\"", "A: \"b\\0\"", "env: expected text without NUL")?;
    check_definition("dind.yaml", "dockerd-entrypoint.sh]", "\"a\\0b\"]", "entrypoint: expected text without NUL")?;
    check_definition(
        "dind.yaml",
        "runs: dockerd",
        "runs: dockerd\nlabels: { a: \"\\0\" }",
        "labels: expected text without NUL",
    )?;
    check_definition("dind.yaml", "runs: dockerd", "runs: dockerd\nlabels: { \"\": a }", "labels: expected a name")?;
    bad_lone_definitions()?;
    check_definition("containerd.yaml", "- /root", "- root", "expected an absolute path")?;
    check_definition("containerd.yaml", "- /root", "- /root/../etc", "without `..`")
}

/// What makes no sense where there is no base, and what is needed there.
fn bad_lone_definitions() -> Result<(), Failed> {
    let lone = |from: &str, to: &str, expected: &str| check_definition("init.yaml", from, to, expected);
    let more = |line: &str, expected: &str| lone("runs: init", &format!("runs: init\n{line}"), expected);
    more("standin: { suite: bookworm, flavour: post }", "standin: expected none on the base scratch, which is empty")?;
    more("carve: { required: [/bin/sh] }", "carve: expected none on the base scratch")?;
    more("keep_env: [PATH]", "keep_env: expected none on the base scratch")?;
    lone("guards: []", "guards: [dockerd]", "guards: expected none on the base scratch")?;
    lone("runs: init", "runs: dockerd", "runs: expected init on the base scratch")?;
    lone("created: ", "# ", "created: expected a time")?;
    lone("created: ", "created: about ", "created: ")?;
    lone("[/dind-init, --]", "[/usr/local/sbin/dind-init, --]", "expected /dind-init as the first word")?;
    lone(
        "base: scratch",
        "base: docker:20-dind",
        "standin: expected what stands in for docker:20-dind, found nothing",
    )?;
    check_definition(
        "dind.yaml",
        "runs: dockerd",
        "runs: init",
        "expected dockerd or containerd on a base, found init",
    )?;
    check_definition("dind.yaml", "base: docker:20-dind", "base: scratch", "runs: expected init on the base scratch")
}

fn bad_locks() -> Result<(), Failed> {
    let index = "index: sha256:85a1b877d0f59fd6c7eebaff67436e26f460347a79229cf054dbbe8d5ae9f936";
    check_definition("bases.lock", index, "index: sha256:85a1", "sha256:85a1")?;
    check_definition("bases.lock", index, &format!("{index}\n  {index}"), "index")?;
    check_definition("bases.lock", index, &format!("{index}\n  tag: x"), "unknown field `tag`")?;
    check_definition("bases.lock", "linux/arm64/v8:", "linux/amd64:", "duplicate")?;
    check_definition(
        "bases.lock",
        "docker.io/library/docker:20-dind:",
        "docker:20-dind:",
        "expected the full reference",
    )
}

fn bad_arguments() -> Result<(), Failed> {
    let cases: &[(&[&str], &str)] = &[
        (&["build-images", "--plan", "dint"], "the images are containerd, dind, init"),
        (&["build-images", "--plan", "--platform", "linux"], "linux"),
        (&["build-images", "--plan", "--platform", "linux/s390x"], "it lists linux/amd64"),
        (
            &["build-images", "--plan", "--platform", "linux/amd64", "--platform", "linux/amd64"],
            "found linux/amd64 twice",
        ),
        (
            &["build-images", "--plan", "--platform", "linux/arm64", "--platform", "linux/arm64/v8"],
            "linux/arm64/v8 twice",
        ),
        (&["build-images", "--plan", "--images", "Cargo.toml"], "found a file\nhint: --images names the folder"),
        (&["build-images", "--plan", "--mirror", "docker.io"], "expected HOST=URL"),
        (&["build-images", "--plan", "--mirror", "http://u:s3cret@127.0.0.1"], "expected HOST=URL"),
        (&["build-images", "--plan", "--mirror", "docker.io=http://u:s3cret@127.0.0.1:9"], "\nhint: log in instead"),
        (&["build-images", "--plan", "--offline", "--mirror", "docker.io=ftp://u:s3cret@h"], "an http or https URL"),
        (&["build-images", "--plan", "--mirror", "docker.io/library=http://127.0.0.1:9"], "expected HOST[:PORT]"),
        (&["build-images", "--plan", "--secure", "https://127.0.0.1"], "expected HOST[:PORT]"),
        (&["build-images", "--plan", "--docker-archive", "-"], "expected the name of a file, found `-`"),
        (&["publish", "127.0.0.1:5055"], "hint: a registry alone is no repository; add a path"),
        (&["publish", "localhost:5055"], "expected a path after the registry: HOST[:PORT]/PATH"),
        (&["publish", "docker:20"], "hint: leave out the tag"),
        (&["build-images", "--plan", "--base", "hub"], "possible values: auto, registry, standin"),
        (&["build-images", "--plan", "--images", "no/such/folder"], "no/such/folder"),
        (&["bild-images"], "unrecognized subcommand"),
        (&[], "Usage"),
    ];
    for (arguments, expected) in cases {
        let output = xtask(*arguments)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure(
            output.status.code() == Some(2) && errors.contains(expected),
            format!("{arguments:?}: expected `{expected}`\n{}", said(&output)),
        )?;
        ensure(output.stdout.is_empty(), format!("{arguments:?}: stdout is data\n{}", said(&output)))?;
        ensure(!errors.contains("s3cret"), format!("{arguments:?}: a secret is printed\n{}", said(&output)))?;
    }
    Ok(())
}

fn bad_epoch() -> Result<(), Failed> {
    let output = command(["build-images", "--plan"]).env("SOURCE_DATE_EPOCH", "yesterday").output()?;
    refused(&output, "expected seconds since 1970, found `yesterday`", "SOURCE_DATE_EPOCH")
}

fn bad_places() -> Result<(), Failed> {
    let folder = folder()?;
    let file = folder.path().join("file");
    fs::write(&file, "")?;
    for (out, expected) in
        [(file.clone(), "File exists"), (file.join("below"), "Not a directory"), ("/proc/out".into(), "No such file")]
    {
        let output = command(["build-images", "--base", "standin", "--suite", "none", "--out"]).arg(&out).output()?;
        refused(&output, expected, "--out")?;
        refused(&output, "\nhint: --out names the folder", "--out")?;
    }
    Ok(())
}
