//! What holds where no option says otherwise: the name that we were called by, and environment variables, those of other
//! inits read as they read them.
//!
//! Looks nothing up itself.

use core::ffi::CStr;

use crate::options::{DURATION, Grouping, Mistake, Options, Survivors, Target};
use crate::{numbers, search};

/// Takes the defaults in: `name` is argv[0], `variable` gives the value of an environment variable.
///
/// # Errors
/// A variable of ours with a wrong value. A wrong one of other inits counts for nothing, as with them.
pub fn apply<'a>(
    options: &mut Options,
    name: &[u8],
    variable: impl Fn(&CStr) -> Option<&'a [u8]>,
) -> Result<(), Mistake<'a>> {
    if is_dumb_init(name) && variable(c"DUMB_INIT_SETSID") != Some(b"0") {
        options.grouping = Grouping::Session;
        options.target = Target::Group;
    }
    if variable(c"TINI_KILL_PROCESS_GROUP").is_some() {
        options.target = Target::Group;
    }
    let verbosity = variable(c"TINI_VERBOSITY").and_then(numbers::decimal).unwrap_or(0);
    options.verbose =
        verbosity >= 2 || variable(c"DUMB_INIT_DEBUG") == Some(b"1") || variable(c"CATATONIT_DEBUG").is_some();
    if let Some(value) = variable(c"DIND_INIT_GRACE") {
        let duration = numbers::duration(value).ok_or(Mistake::WrongValue(b"DIND_INIT_GRACE", DURATION, value))?;
        options.survivors = Survivors::of(duration);
    }
    Ok(())
}

/// Whether we were called by the name of dumb-init, whose users expect its defaults.
#[must_use]
pub fn is_dumb_init(name: &[u8]) -> bool {
    search::base_name(name) == b"dumb-init"
}

/// Whether the init waits and reaps itself even where the kernel could do it: a way to compare both.
#[must_use]
pub fn forbids_kernel_reaping<'a>(variable: impl Fn(&CStr) -> Option<&'a [u8]>) -> bool {
    variable(c"DIND_INIT_LOOP") == Some(b"wait")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment() {
        type Variables<'a> = &'a [(&'a CStr, &'a [u8])];
        let read = |name: &[u8], variables: Variables<'static>| {
            let mut options = Options::default();
            apply(&mut options, name, |wanted| {
                variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value)
            })?;
            Ok(options)
        };
        let plain = Options::default();
        let dumb = Options { target: Target::Group, grouping: Grouping::Session, ..plain.clone() };
        let group = Options { target: Target::Group, ..plain.clone() };
        let verbose = Options { verbose: true, ..plain.clone() };
        let five = Survivors::Terminated(numbers::Milliseconds(5000));
        let cases: &[(&[u8], Variables, Result<Options, Mistake>)] = &[
            (b"/sbin/dind-init", &[], Ok(plain.clone())),
            (b"/usr/bin/dumb-init", &[], Ok(dumb.clone())),
            (b"dumb-init", &[(c"DUMB_INIT_SETSID", b"0")], Ok(plain.clone())),
            (b"dumb-init", &[(c"DUMB_INIT_SETSID", b"1")], Ok(dumb)),
            (b"tini", &[(c"DUMB_INIT_SETSID", b"1")], Ok(plain.clone())),
            (b"tini", &[(c"TINI_KILL_PROCESS_GROUP", b"")], Ok(group)),
            (b"tini", &[(c"TINI_SUBREAPER", b""), (c"TINI_VERBOSITY", b"1")], Ok(plain.clone())),
            (b"tini", &[(c"TINI_VERBOSITY", b"3")], Ok(verbose.clone())),
            (b"tini", &[(c"TINI_VERBOSITY", b"x")], Ok(plain.clone())),
            (b"x", &[(c"DUMB_INIT_DEBUG", b"1")], Ok(verbose.clone())),
            (b"x", &[(c"CATATONIT_DEBUG", b"")], Ok(verbose)),
            (b"x", &[(c"DIND_INIT_GRACE", b"5s")], Ok(Options { survivors: five, ..plain.clone() })),
            (b"x", &[(c"DIND_INIT_GRACE", b"0")], Ok(plain)),
            (b"x", &[(c"DIND_INIT_GRACE", b"")], Err(Mistake::WrongValue(b"DIND_INIT_GRACE", DURATION, b""))),
        ];
        for (name, variables, expected) in cases {
            assert_eq!(&read(name, variables), expected, "{} {variables:?}", String::from_utf8_lossy(name));
        }
    }
}
