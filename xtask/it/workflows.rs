//! The workflows in `.github/`: the house's rules for them, the linters with a control for each kind of finding, and their steps, read
//! from the YAML and run here in order. What only the hosting service can do is listed with the reason, and nothing else is left out.

use std::fs;
use std::path::Path;

use libtest_mimic::{Failed, Trial};
use oci::Interrupt;
use serde_yaml::Value;
use xtask::linters::{Linters, workflows};

use crate::service::Service;
use crate::support::{ensure, folder, lacks, repository, trial, trial_alone_if, trial_if};
use crate::workbench::{AMD64, Workbench};

pub(crate) fn trials() -> Vec<Trial> {
    let linters = Linters::find(repository()).err().map(|error| format!("{error:#}"));
    vec![
        trial("workflows::the_rules_of_the_house_hold", rules),
        trial("workflows::what_breaks_a_rule_is_named", broken_rules),
        trial("workflows::ci_runs_what_is_run_at_home", home),
        trial_if("workflows::the_linters_find_nothing", linters.clone(), clean),
        trial_if("workflows::the_linters_find_what_is_wrong", linters, faulty),
        trial("workflows::a_step_that_cannot_be_run_or_is_not_listed_is_found", left_out),
        trial_alone_if(
            "workflows::the_steps_run_locally_in_order",
            lacks(&["mmdebstrap", "skopeo", "docker-registry", "tini-static", "pip3"]),
            steps,
        ),
    ]
}

/// Where a step's output may go: the files that the service reads.
const FILES: [&str; 2] = ["\"$GITHUB_OUTPUT\"", "\"$GITHUB_STEP_SUMMARY\""];

/// What shells read as more than words, and expressions, which the service would put into the script before a shell sees it.
const MORE_THAN_WORDS: [&str; 9] = ["\n", ";", "&", "|", "`", "$(", ">", "<", "${{"];

/// The jobs that may write, and what: any other may read. What checks pull requests is not among them.
const WRITERS: [(&str, &str, &[&str]); 5] = [
    ("images", "leg", &["packages"]),
    ("images", "merge", &["packages"]),
    ("images", "pulled", &["packages"]),
    ("promote", "apply", &["packages"]),
    ("bases", "lock", &["contents", "pull-requests"]),
];

/// The rights of a job that it has no business with.
fn right_faults(workflow: &Value, id: &str, job: &Value, faults: &mut Vec<String>) {
    let Some(rights) = job["permissions"].as_mapping() else {
        faults.push(format!("{id}: expected permissions of its own"));
        return;
    };
    let name = workflow["name"].as_str().unwrap_or_default();
    let listed = WRITERS.iter().find(|(file, job, _)| (*file, *job) == (name, id));
    let may_write = listed.map_or(&[][..], |(.., rights)| rights);
    for (right, access) in rights {
        let (right, access) = (right.as_str().unwrap_or_default(), access.as_str().unwrap_or_default());
        let is_harmless = matches!(access, "read" | "none") || access == "write" && may_write.contains(&right);
        if !is_harmless {
            faults.push(format!("{id}: expected to write {may_write:?} alone, found {right}: {access}"));
        }
    }
}

/// What of a workflow breaks the rules, one line each.
fn faults(text: &str) -> Result<Vec<String>, Failed> {
    let workflow: Value = serde_yaml::from_str(text)?;
    let mut faults = Vec::new();
    if text.contains("pull_request_target") {
        faults.push("pull_request_target runs strangers' code with our rights".to_owned());
    }
    let rights = workflow["permissions"].as_mapping();
    if !rights.is_some_and(|rights| rights.values().all(|right| right == "read" || right == "none")) {
        faults.push("expected top-level permissions of `read` at most".to_owned());
    }
    if workflow["concurrency"]["group"].is_null() {
        faults.push("expected a concurrency group".to_owned());
    }
    for line in text.lines().map(str::trim).filter(|line| line.trim_start_matches("- ").starts_with("uses:")) {
        if !is_pinned(line) {
            faults.push(format!("expected an action by its commit and a comment with its version, found {line}"));
        }
    }
    for (id, job) in workflow["jobs"].as_mapping().ok_or("no jobs")? {
        let id = id.as_str().unwrap_or_default();
        if !job["timeout-minutes"].is_u64() {
            faults.push(format!("{id}: expected timeout-minutes"));
        }
        right_faults(&workflow, id, job, &mut faults);
        for step in job["steps"].as_sequence().ok_or(format!("{id}: no steps"))? {
            step_faults(id, step, &mut faults);
        }
    }
    Ok(faults)
}

fn step_faults(job: &str, step: &Value, faults: &mut Vec<String>) {
    if let Some(action) = step["uses"].as_str() {
        if action.starts_with("actions/checkout@") && step["with"]["persist-credentials"] != false {
            faults.push(format!("{job}: expected persist-credentials: false, or the token stays in the checkout"));
        }
        if action.contains("cache") || !step["with"]["cache"].is_null() {
            faults
                .push(format!("{job}: expected no cache, found {action}: who may write it decides what is published"));
        }
    }
    if let Some(run) = step["run"].as_str() {
        let redirected = FILES.iter().find_map(|file| run.strip_suffix(file)?.trim_end().strip_suffix(">>"));
        let command = redirected.unwrap_or(run);
        if !command.starts_with("cargo xtask ") || MORE_THAN_WORDS.iter().any(|more| command.contains(more)) {
            faults.push(format!("{job}: expected one call of cargo xtask, found {run}"));
        }
    }
}

/// `uses: OWNER/NAME@COMMIT # vVERSION`.
fn is_pinned(line: &str) -> bool {
    let Some((action, comment)) = line.split_once(" # v") else { return false };
    let commit = action.rsplit_once('@').map_or("", |(_, commit)| commit);
    commit.len() == 40
        && commit.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        && comment.starts_with(|first: char| first.is_ascii_digit())
}

fn text(name: &str) -> Result<String, Failed> {
    Ok(fs::read_to_string(repository().join(".github/workflows").join(name))?)
}

fn rules() -> Result<(), Failed> {
    for path in workflows(repository())? {
        let faults = faults(&fs::read_to_string(&path)?)?;
        ensure(faults.is_empty(), format!("{}: {faults:#?}", path.display()))?;
    }
    Ok(())
}

fn broken_rules() -> Result<(), Failed> {
    let good = text("images.yml")?;
    let commit = "actions/checkout@9c091bb21b7c1c1d1991bb908d89e4e9dddfe3e0 # v7.0.0";
    // The list is of jobs, and not of names that any workflow may give them.
    let other = faults(&good.replacen("name: images", "name: ci", 1))?;
    ensure(other.len() == 3, format!("expected that three jobs of another workflow may not write, found {other:?}"))?;
    for (from, to, expected) in [
        ("workflow_dispatch:", "pull_request_target:", "strangers' code"),
        ("permissions: {}", "permissions: { packages: write }", "top-level permissions"),
        ("permissions: {}", "permissions: write-all", "top-level permissions"),
        ("permissions: {}\n", "", "top-level permissions"),
        ("  group: images\n", "", "concurrency"),
        (commit, "actions/checkout@v7.0.0", "by its commit"),
        (commit, "actions/checkout@9c091bb21b7c1c1d1991bb908d89e4e9dddfe3e0", "by its commit"),
        (commit, "actions/checkout@9c091bb # v7.0.0", "by its commit"),
        ("    timeout-minutes: 30\n", "", "merge: expected timeout-minutes"),
        ("persist-credentials: false", "persist-credentials: true", "persist-credentials"),
        ("        with:\n          persist-credentials: false\n", "", "persist-credentials"),
        (
            "          persist-credentials: false",
            "          persist-credentials: false\n          cache: cargo",
            "no cache",
        ),
        ("run: cargo xtask setup", "run: cargo xtask setup && cargo xtask test", "one call"),
        (
            "contents: read # to check out",
            "contents: write",
            "matrix: expected to write [] alone, found contents: write",
        ),
        ("packages: write # to push to staging", "id-token: write", "leg: expected to write [\"packages\"] alone"),
        ("packages: write # to push to staging", "packages: admin", "found packages: admin"),
        ("run: cargo xtask setup", "run: make", "one call"),
        ("run: cargo xtask setup", "run: cargo xtask setup > log", "one call"),
        ("run: cargo xtask setup", "run: |\n          cargo xtask setup\n          cargo xtask test", "one call"),
        ("\"$PLATFORM\"", "${{ matrix.platform }}", "one call"),
        ("cargo xtask matrix --output matrix", "echo \"matrix=$(cargo xtask matrix)\"", "one call"),
    ] {
        ensure(good.contains(from), format!("images.yml no longer contains {from:?}: mend the case"))?;
        let found = faults(&good.replacen(from, to, 1))?;
        ensure(
            found.len() == 1 && found[0].contains(expected),
            format!("{to:?}: expected {expected:?}, found {found:?}"),
        )?;
    }
    Ok(())
}

fn home() -> Result<(), Failed> {
    let script = fs::read_to_string(repository().join(".ci/run"))?;
    let at_home: Vec<_> = script.lines().filter(|line| line.starts_with("cargo ")).collect();
    let workflow: Value = serde_yaml::from_str(&text("ci.yml")?)?;
    let steps = workflow["jobs"]["test"]["steps"].as_sequence().ok_or("no steps")?;
    let there: Vec<_> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
    ensure(at_home == there, format!(".ci/run runs {at_home:?}, ci.yml {there:?}"))
}

fn clean() -> Result<(), Failed> {
    Ok(Linters::find(repository())?.check(repository(), &Interrupt::default())?)
}

/// Our own files with one fault each, and who must find it.
fn faulty() -> Result<(), Failed> {
    const ACTIONLINT: &str = "actionlint";
    const ZIZMOR: &str = "zizmor";
    let checkout = "actions/checkout@9c091bb21b7c1c1d1991bb908d89e4e9dddfe3e0 # v7.0.0";
    let title = "run: echo \"${{ github.event.pull_request.title }}\"";
    let linters = Linters::find(repository())?;
    for (file, from, to, linter, expected) in [
        ("workflows/ci.yml", "run: cargo xtask test", title, ACTIONLINT, "untrusted"),
        ("workflows/ci.yml", "run: cargo xtask test", title, ZIZMOR, "template-injection"),
        ("workflows/ci.yml", checkout, "actions/checkout@v7", ZIZMOR, "unpinned-uses"),
        ("workflows/ci.yml", "        with:\n          persist-credentials: false\n", "", ZIZMOR, "artipacked"),
        ("workflows/ci.yml", "  pull_request:\n", "  pull_request_target:\n", ZIZMOR, "dangerous-triggers"),
        ("workflows/ci.yml", "runs-on:", "run-on:", ACTIONLINT, "run-on"),
        ("workflows/ci.yml", "  test:\n", "  test: [\n", ACTIONLINT, "YAML"),
        ("workflows/images.yml", "needs: leg", "needs: legs", ACTIONLINT, "legs"),
        ("workflows/images.yml", "steps.matrix.outputs", "steps.matrices.outputs", ACTIONLINT, "matrices"),
        ("workflows/promote.yml", "permissions: {}", "permissions: write-all", ZIZMOR, "excessive-permissions"),
        ("dependabot.yml", "default-days: 7", "default-days: 1", ZIZMOR, "dependabot-cooldown"),
    ] {
        let place = folder()?;
        copy(&repository().join(".github"), &place.path().join(".github"))?;
        let path = place.path().join(".github").join(file);
        let text = fs::read_to_string(&path)?;
        ensure(text.contains(from), format!("{file} no longer contains {from:?}: mend the case"))?;
        fs::write(&path, text.replacen(from, to, 1))?;
        let found = match linter {
            ACTIONLINT => linters.actionlint(&workflows(place.path())?, &Interrupt::default()),
            _ => linters.zizmor(&place.path().join(".github"), &Interrupt::default()),
        };
        let Err(error) = found else { return Err(format!("{linter} does not see {to:?} in {file}").into()) };
        let error = format!("{error:#}");
        ensure(error.contains(expected), format!("{to:?} in {file}: expected {expected:?}, {linter} says\n{error}"))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), Failed> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

/// The control of what follows: workflows whose steps, values and jobs are not ours.
fn left_out() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let service =
        Service::new(bench.folder.path(), &bench, "docker.io=http://127.0.0.1:9", &[("vars.STAGING", "there")])?;
    let folder = bench.path(".github/workflows");
    fs::create_dir_all(&folder)?;
    let run = |step: &str| -> Result<(), Failed> {
        let text = format!("jobs:\n  one:\n    steps:\n      - {step}\n  two:\n    steps:\n      - run: 'true'\n");
        fs::write(folder.join("odd.yml"), text)?;
        service.run("odd.yml", &["one"])
    };
    run("{ run: 'test $AT = there', env: { AT: '${{ vars.STAGING }}' } }")?;
    for (step, expected) in [
        ("uses: someone/action@v1", "neither run nor listed"),
        ("run: 'false'", "expected exit 0"),
        ("run: 'false | true'", "expected exit 0"),
        ("run: 'cargo xtask nothing'", "unrecognized subcommand"),
        ("{ run: 'true', env: { AT: '${{ vars.NOBODY }}' } }", "no value for"),
        ("{ name: nothing }", "expected run or uses"),
        ("{ uses: actions/upload-artifact@v1, with: { name: a, path: none } }", "no such file to upload"),
    ] {
        let Err(error) = run(step) else { return Err(format!("{step}: it went through").into()) };
        let error = error.message().unwrap_or_default().to_owned();
        ensure(error.contains(expected), format!("{step}: expected {expected:?}, found {error}"))?;
    }
    ensure(service.nothing_is_left_out().is_err(), "job two was not run, and nobody saw it")?;
    service.run("odd.yml", &["two"])?;
    service.nothing_is_left_out()
}

/// From a base in a registry to users, by the workflows alone: images.yml builds, judges and merges, a promotion file is written as a person
/// would, promote.yml plans and promotes, and bases.yml finds that the base has moved. The image that is judged
/// faster is enough to run every step.
fn steps() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    fs::remove_file(bench.path("images/dind.yaml"))?;
    let (registry, mirror, seeded) = bench.registry()?;
    let staging = format!("{}/dind-staging", registry.host());
    let users = format!("{}/dind", registry.host());
    let variables = [("vars.STAGING", staging.as_str()), ("vars.REGISTRY", &registry.host())];
    let service = Service::new(repository(), &bench, &mirror, &variables)?;
    let client = oci::Client::new(oci::Options::default())?;
    let look = |reference: &str| -> Result<_, Failed> { Ok(client.head(&oci::Reference::parse(reference)?)?) };

    service.run("ci.yml", &["test"])?;
    // The leg of the other platform is refused here; its machine is not at hand, so the image is then declared for this one alone.
    service.run("images.yml", &["matrix", "leg"])?;
    let matrix = service.value("needs.matrix.outputs.matrix").unwrap_or_default();
    ensure(matrix.contains("linux/arm64"), format!("expected a leg that must be refused, found {matrix}"))?;
    for name in ["containerd", "init"] {
        let definition = bench.path(&format!("images/{name}.yaml"));
        let text = fs::read_to_string(&definition)?;
        let alone = text.replace("[linux/amd64, linux/arm64/v8]", "[linux/amd64]");
        ensure(alone != text, format!("the definition of {name} lists other platforms"))?;
        fs::write(&definition, alone)?;
    }
    service.run("images.yml", &["matrix", "leg", "merge", "pulled"])?;
    let record: serde_json::Value = serde_json::from_slice(&service.artifact("record", "digests.json")?)?;
    let digest = record["images"][0]["digest"].as_str().ok_or("no digest")?;
    ensure(record["images"][0]["platforms"][AMD64]["verdict"]["outcome"] == "passed", format!("{record:#}"))?;
    let staged = look(&format!("{staging}:20-containerd"))?.ok_or("nothing is staged")?;
    ensure(staged.digest.to_string() == digest, format!("expected {digest} in staging, found {staged:?}"))?;
    let summary = service.summary()?;
    ensure(summary.contains(&format!("containerd@{digest} {AMD64} passed")), format!("what was pulled: {summary}"))?;
    let init = record["images"][1]["digest"].as_str().ok_or("no init")?;
    ensure(summary.contains(&format!("init@{init} {AMD64} passed")), format!("what was pulled: {summary}"))?;

    let promotion = format!(
        "source: {staging}\ntarget: {users}\nimages:\n  containerd:\n    digest: {digest}\n    tags: {{ 20-containerd: floating, 20-1: immutable }}\n  init:\n    digest: {init}\n    tags: {{ dind-init: floating }}\n"
    );
    fs::write(bench.path("images/promotion.yaml"), promotion)?;
    service.run("promote.yml", &["plan"])?;
    ensure(service.summary()?.contains("20-1"), "the summary has no plan")?;
    ensure(look(&format!("{users}:20-containerd")).is_ok_and(|found| found.is_none()), "the plan promoted")?;
    service.run("promote.yml", &["apply"])?;
    for (tag, digest) in [("20-containerd", digest), ("20-1", digest), ("dind-init", init)] {
        let found = look(&format!("{users}:{tag}"))?.ok_or(format!("{tag} was not promoted"))?;
        ensure(found.digest.to_string() == digest, format!("{tag}: expected {digest}, found {found:?}"))?;
    }

    bench.lock(&oci::Digest::of(b"what it was"), &oci::Digest::of(b"this too"))?;
    service.run("bases.yml", &["lock"])?;
    let lock = fs::read_to_string(bench.path("images/bases.lock"))?;
    ensure(lock.contains(&seeded.index.to_string()) && lock.contains(&seeded.amd64.to_string()), lock)?;
    service.nothing_is_left_out()
}
