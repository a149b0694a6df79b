//! What the hosting service does with a workflow, as far as it can be done here: jobs in order, once for each entry of the matrix, values
//! put into `env`, scripts given to bash, outputs and summaries collected. Never changes a step.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libtest_mimic::Failed;
use serde_yaml::Value;

use crate::shop::{done, refused};
use crate::support::ensure;
use crate::workbench::{AMD64, Workbench};

/// The actions that only the service can run, and why none is missed here.
const HOSTED: [(&str, &str); 5] = [
    ("actions/checkout", "the repository is here"),
    ("docker/login-action", "the trial's registry knows no users"),
    ("actions/upload-artifact", "the service's store; the files are kept in a folder, as it would keep them"),
    ("actions/download-artifact", "the service's store; the files come from that folder, as it would lay them out"),
    ("peter-evans/create-pull-request", "there is nobody to propose a change to"),
];

/// The steps that are not run, and why.
const LEFT_OUT: [(&str, &str); 1] = [("cargo xtask test", "it runs this trial")];

/// What a machine must do itself, in the words of its step: that of another platform is not here.
const NATIVE: [(&str, &str); 2] = [
    ("cargo xtask build-images", "it must be refused here, as nobody can judge the leg: nothing unjudged gets out"),
    ("cargo xtask judge", "it judges the platform of the machine that it runs on, which the entry of this one shows"),
];

/// The shells that the workflows ask for: bash, as root where that is needed, which the trial is.
const SHELLS: [&str; 2] = ["bash -eo pipefail {0}", "sudo --preserve-env --preserve-env=PATH bash -eo pipefail {0}"];

/// By the names that expressions use: `vars.STAGING`, `matrix.platform`, `needs.matrix.outputs.matrix`.
type Context = BTreeMap<String, String>;

pub(crate) struct Service {
    /// The repository whose workflows are run.
    root: PathBuf,
    place: PathBuf,
    images: PathBuf,
    mirror: String,
    context: RefCell<Context>,
    /// The jobs that were run, as `FILE JOB`.
    jobs: RefCell<BTreeSet<String>>,
}

impl Service {
    /// A service for the repository at `root` whose machines know these variables, ask `mirror` first, and take the definitions of `bench` for those of the repository:
    /// that is in the environment, and not in the workflows.
    pub(crate) fn new(
        root: &Path,
        bench: &Workbench,
        mirror: &str,
        variables: &[(&str, &str)],
    ) -> Result<Self, Failed> {
        let place = bench.path("machine");
        fs::create_dir_all(place.join("bin"))?;
        // `cargo xtask` as .cargo/config.toml has it, but already built; any other cargo is cargo.
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| env!("CARGO").to_owned());
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = xtask ]; then shift; exec {} \"$@\"; fi\nexec {cargo} \"$@\"\n",
            env!("CARGO_BIN_EXE_xtask")
        );
        fs::write(place.join("bin/cargo"), script)?;
        fs::set_permissions(place.join("bin/cargo"), fs::Permissions::from_mode(0o755))?;
        let context = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Ok(Self {
            root: root.to_owned(),
            images: bench.path("images"),
            mirror: mirror.to_owned(),
            context: RefCell::new(context),
            jobs: RefCell::default(),
            place,
        })
    }

    /// Runs these jobs of a workflow, each for every entry of its matrix; those of another machine's platform as far as it can be done here.
    pub(crate) fn run(&self, file: &str, jobs: &[&str]) -> Result<(), Failed> {
        let workflow = self.workflow(file)?;
        let shell = &workflow["defaults"]["run"]["shell"];
        ensure(shell.is_null() || SHELLS.iter().any(|known| shell == known), format!("{file}: {shell:?}"))?;
        for id in jobs {
            let job = &workflow["jobs"][*id];
            ensure(job.is_mapping(), format!("{file} has no job {id}"))?;
            for context in self.entries(job)? {
                let native = context.get("matrix.platform").is_none_or(|platform| platform == AMD64);
                let context = self
                    .job(file, job, context, native)
                    .map_err(|error| Failed::from(format!("{file}, {id}: {}", error.message().unwrap_or_default())))?;
                for (name, value) in job["outputs"].as_mapping().into_iter().flatten() {
                    let (name, value) = (name.as_str().ok_or("a name")?, value.as_str().ok_or("a value")?);
                    let value = evaluate(value, &context)?;
                    self.context.borrow_mut().insert(format!("needs.{id}.outputs.{name}"), value);
                }
            }
            self.jobs.borrow_mut().insert(format!("{file} {id}"));
        }
        Ok(())
    }

    /// A file of an artifact.
    pub(crate) fn artifact(&self, name: &str, file: &str) -> Result<Vec<u8>, Failed> {
        Ok(fs::read(self.artifacts().join(name).join(file))?)
    }

    /// What the steps wrote for people so far.
    pub(crate) fn summary(&self) -> Result<String, Failed> {
        Ok(fs::read_to_string(self.place.join("summary"))?)
    }

    /// Fails unless every job of every workflow was run.
    pub(crate) fn nothing_is_left_out(&self) -> Result<(), Failed> {
        let mut expected = BTreeSet::new();
        for path in xtask::linters::workflows(&self.root)? {
            let file = path.file_name().and_then(|name| name.to_str()).ok_or("a file without a name")?;
            for (id, _) in self.workflow(file)?["jobs"].as_mapping().ok_or("no jobs")? {
                expected.insert(format!("{file} {}", id.as_str().ok_or("a job without a name")?));
            }
        }
        let run = self.jobs.borrow();
        ensure(*run == expected, format!("expected to run {expected:?}, found {run:?}"))
    }

    fn workflow(&self, file: &str) -> Result<Value, Failed> {
        Ok(serde_yaml::from_str(&fs::read_to_string(self.root.join(".github/workflows").join(file))?)?)
    }

    fn artifacts(&self) -> PathBuf {
        self.place.join("artifacts")
    }

    /// What an expression stands for, as far as it is known by now.
    pub(crate) fn value(&self, expression: &str) -> Option<String> {
        self.context.borrow().get(expression).cloned()
    }

    /// One context for each entry of the job's matrix, or one.
    fn entries(&self, job: &Value) -> Result<Vec<Context>, Failed> {
        let context = self.context.borrow().clone();
        let Some(matrix) = job["strategy"]["matrix"].as_str() else { return Ok(vec![context]) };
        let source = matrix.strip_prefix("${{ fromJSON(").and_then(|rest| rest.strip_suffix(") }}"));
        let source = source.ok_or(format!("expected fromJSON, found {matrix}"))?;
        let matrix: serde_json::Value =
            serde_json::from_str(context.get(source).ok_or(format!("no {source}: {context:?}"))?)?;
        let entries = matrix["include"].as_array().ok_or("no include")?;
        ensure(!entries.is_empty(), "expected an entry of the matrix, found none")?;
        let entry = |entry: &serde_json::Value| {
            let mut context = context.clone();
            for (key, value) in entry.as_object().into_iter().flatten() {
                context.insert(format!("matrix.{key}"), value.as_str().unwrap_or_default().to_owned());
            }
            context
        };
        Ok(entries.iter().map(entry).collect())
    }

    fn job(&self, file: &str, job: &Value, mut context: Context, native: bool) -> Result<Context, Failed> {
        for step in job["steps"].as_sequence().ok_or("no steps")? {
            if let Some(action) = step["uses"].as_str() {
                self.hosted(action, step, &context)?;
            } else {
                let run = step["run"].as_str().ok_or(format!("expected run or uses, found {step:?}"))?;
                if LEFT_OUT.iter().any(|(left_out, _)| *left_out == run) {
                    continue;
                }
                let foreign = NATIVE.iter().find(|(words, _)| !native && run.starts_with(words));
                if foreign.is_some_and(|(words, _)| words.ends_with("judge")) {
                    return Ok(context);
                }
                let output = self.step(run, step, &mut context)?;
                if foreign.is_some() {
                    refused(&output, &["would not be judged: this machine runs"])?;
                    return Ok(context);
                }
                done(&output).map_err(|error| format!("{file}: {run}: {}", error.message().unwrap_or_default()))?;
            }
        }
        Ok(context)
    }

    fn step(&self, run: &str, step: &Value, context: &mut Context) -> Result<Output, Failed> {
        let outputs = self.place.join("output");
        fs::write(&outputs, "")?;
        let mut command = Command::new("bash");
        command.args(["-eo", "pipefail", "-c", run]).current_dir(&self.place).env_remove("SOURCE_DATE_EPOCH");
        for (name, value) in step["env"].as_mapping().into_iter().flatten() {
            let (name, value) = (name.as_str().ok_or("a name")?, value.as_str().ok_or("a value")?);
            command.env(name, evaluate(value, context)?);
        }
        let path = std::env::var("PATH")?;
        let output = command
            .env("PATH", format!("{}:{path}", self.place.join("bin").display()))
            .env("GITHUB_OUTPUT", &outputs)
            .env("GITHUB_STEP_SUMMARY", self.place.join("summary"))
            .env("XTASK_IMAGES", &self.images)
            .env("XTASK_MIRROR", &self.mirror)
            .output()?;
        for line in fs::read_to_string(&outputs)?.lines() {
            let (name, value) = line.split_once('=').ok_or(format!("expected NAME=VALUE, found {line}"))?;
            let id = step["id"].as_str().ok_or("a step with outputs has no id")?;
            context.insert(format!("steps.{id}.outputs.{name}"), value.to_owned());
        }
        Ok(output)
    }

    /// An action: it must be in the list. Artifacts are kept and laid out as the service does: a folder for each, the file at its root.
    fn hosted(&self, action: &str, step: &Value, context: &Context) -> Result<(), Failed> {
        let name = action.split('@').next().unwrap_or(action);
        ensure(HOSTED.iter().any(|(known, _)| *known == name), format!("{action}: neither run nor listed"))?;
        let with = |key: &str| evaluate(step["with"][key].as_str().unwrap_or_default(), context);
        if name == "actions/upload-artifact" {
            let (file, to) = (self.place.join(with("path")?), self.artifacts().join(with("name")?));
            ensure(file.is_file(), format!("{}: no such file to upload", file.display()))?;
            copy_into(&file, &to)?;
        } else if name == "actions/download-artifact" {
            self.download(&with("name")?, &with("pattern")?, &self.place.join(with("path")?))?;
        }
        Ok(())
    }

    /// One artifact by its name, or, in a folder for each, those that a pattern names.
    fn download(&self, name: &str, pattern: &str, to: &Path) -> Result<(), Failed> {
        if !name.is_empty() {
            return copy_all(&self.artifacts().join(name), to);
        }
        let prefix = pattern.strip_suffix('*').ok_or(format!("expected PREFIX*, found {pattern}"))?;
        for artifact in fs::read_dir(self.artifacts())? {
            let artifact = artifact?;
            if artifact.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
                copy_all(&artifact.path(), &to.join(artifact.file_name()))?;
            }
        }
        Ok(())
    }
}

/// Puts values in the place of `${{ NAME }}`.
fn evaluate(text: &str, context: &Context) -> Result<String, Failed> {
    let (mut done, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${{") {
        let (name, after) = after.split_once("}}").ok_or(format!("expected }}}} in {text}"))?;
        let value = context.get(name.trim()).ok_or(format!("no value for {text}"))?;
        done.push_str(before);
        done.push_str(value);
        rest = after;
    }
    Ok(done + rest)
}

fn copy_all(from: &Path, to: &Path) -> Result<(), Failed> {
    fs::read_dir(from)?.try_for_each(|file| copy_into(&file?.path(), to))
}

fn copy_into(file: &Path, folder: &Path) -> Result<(), Failed> {
    fs::create_dir_all(folder)?;
    fs::copy(file, folder.join(file.file_name().ok_or("a file without a name")?))?;
    Ok(())
}
