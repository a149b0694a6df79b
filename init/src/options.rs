//! The command line, read in place: options up to the first argument that is none, or up to `--`; then the command.
//!
//! Arguments are bytes. The letters are tini's, dumb-init's and catatonit's, which do not collide; an unknown one is a
//! mistake, never passed over. What holds without options is in `environment.rs`.

use crate::numbers::Milliseconds;
use crate::signals::{self, Number, Rewrites};
use crate::text::split;
use crate::{numbers, status};

/// What the caller wants.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// Text on stdout, then the end.
    Help,
    /// One line on stdout, then the end.
    Version,
    /// The licence on stdout, then the end.
    Licence,
    /// No command: reap until a signal ends us.
    Pause,
    /// Run the command that stands at this index in argv, at least 1.
    Run(usize),
}

/// How to run the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Who gets the signals.
    pub target: Target,
    /// Which process group the command is started in.
    pub grouping: Grouping,
    /// Orphans below us become our children where we are not PID 1.
    pub adopts: bool,
    /// What our parent's end sends us.
    pub on_parents_end: Option<Number>,
    /// Start and end of the command are told on stderr.
    pub verbose: bool,
    /// Each orphan that is reaped is told on stderr.
    pub names_reaped: bool,
    /// Which of the command's exit codes count as success.
    pub forgiven: status::Codes,
    /// What becomes of each signal's number.
    pub rewrites: Rewrites,
    /// What becomes of those that outlive the command.
    pub survivors: Survivors,
    /// How long after the first signal that asks it to end the command is killed.
    pub kill_after: Option<Milliseconds>,
}

/// Who gets the signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The command's process alone.
    Command,
    /// Its process group.
    Group,
    /// Every process that we may signal.
    All,
}

/// Which process group the command is started in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// One of its own.
    Own,
    /// A session of its own, if we have no terminal that it would lose.
    Session,
    /// Ours.
    Parents,
}

/// What becomes of those that outlive the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// We leave them alone; where we are PID 1 our end is theirs.
    Left,
    /// They are asked to end, and we stay until they have, at most this long.
    Terminated(Milliseconds),
    /// We stay until they have ended.
    Awaited,
}

/// Why a command line or the environment cannot be followed.
#[derive(Debug, PartialEq, Eq)]
pub enum Mistake<'a> {
    /// No such option; the whole argument.
    UnknownOption(&'a [u8]),
    /// Nothing to run.
    NoCommand,
    /// An option without its value; the whole argument.
    NoValue(&'a [u8]),
    /// A value that is none; the option or variable, what its values are, and what was found.
    WrongValue(&'a [u8], &'static str, &'a [u8]),
}

/// What an option says.
#[derive(Debug, Clone, Copy)]
enum Key {
    Adopt,
    All,
    AwaitAll,
    Code,
    Command,
    Grace,
    Group,
    Help,
    KeepGroup,
    KillAfter,
    Licence,
    NameReaped,
    NoAdoption,
    ParentsEnd,
    Pause,
    Rewrite,
    Verbose,
    Version,
}

/// Every option by its letter, 0 for none, and its long name, empty for none.
const KEYS: [(u8, &[u8], Key); 19] = [
    (b'c', b"single-child", Key::Command),
    (b'e', b"", Key::Code),
    (b'g', b"", Key::Group),
    (b'h', b"help", Key::Help),
    (b'l', b"", Key::Licence),
    (b'L', b"", Key::Licence),
    (b'p', b"", Key::ParentsEnd),
    (b'P', b"", Key::Pause),
    (b'r', b"rewrite", Key::Rewrite),
    (b's', b"", Key::Adopt),
    (b'v', b"verbose", Key::Verbose),
    (b'V', b"version", Key::Version),
    (b'w', b"", Key::NameReaped),
    (0, b"all", Key::All),
    (0, b"grace", Key::Grace),
    (0, b"keep-pgrp", Key::KeepGroup),
    (0, b"kill-after", Key::KillAfter),
    (0, b"no-subreaper", Key::NoAdoption),
    (0, b"wait-all", Key::AwaitAll),
];

pub(crate) const DURATION: &str = "a duration (5s, 500ms)";
const SIGNAL: &str = "a signal (TERM, SIGTERM, 15, RTMIN+1)";
const CODE: &str = "an exit code from 0 to 255";
const REWRITE: &str = "two signals (TERM:QUIT, 15:0)";

impl Default for Options {
    fn default() -> Self {
        Self {
            target: Target::Command,
            grouping: Grouping::Own,
            adopts: true,
            on_parents_end: None,
            verbose: false,
            names_reaped: false,
            forgiven: status::Codes::NONE,
            rewrites: Rewrites::NONE,
            survivors: Survivors::Left,
            kill_after: None,
        }
    }
}

/// Reads `arguments`, which are argv without argv[0], over the defaults in `options`.
///
/// # Errors
/// The first mistake, with the argument at fault.
pub fn parse<'a>(options: &mut Options, arguments: impl Iterator<Item = &'a [u8]>) -> Result<Request, Mistake<'a>> {
    let mut indexed = (1..).zip(arguments);
    while let Some((index, argument)) = indexed.next() {
        let mut next = || indexed.next().map(|(_, value)| value);
        match argument {
            b"--" => return next().map(|_| Request::Run(index + 1)).ok_or(Mistake::NoCommand),
            [b'-', b'-', word @ ..] => {
                let (name, attached) = split(word, b'=');
                let known = KEYS.iter().find(|(_, long, _)| !long.is_empty() && *long == name);
                let Some((_, _, key)) = known.filter(|(_, _, key)| attached.is_none() || key.expects().is_some())
                else {
                    return Err(Mistake::UnknownOption(argument));
                };
                if let Some(request) = options.apply(*key, argument, attached, &mut next)? {
                    return Ok(request);
                }
            }
            [b'-', letters @ ..] if !letters.is_empty() => {
                let mut rest = letters;
                while let [letter, after @ ..] = rest {
                    let Some((_, _, key)) = KEYS.iter().find(|(short, _, _)| short == letter) else {
                        return Err(Mistake::UnknownOption(argument));
                    };
                    rest = if key.expects().is_some() { b"" } else { after };
                    let attached = Some(after).filter(|after| !after.is_empty());
                    if let Some(request) = options.apply(*key, argument, attached, &mut next)? {
                        return Ok(request);
                    }
                }
            }
            _ => return Ok(Request::Run(index)),
        }
    }
    Err(Mistake::NoCommand)
}

impl Key {
    /// What its value has to be; none where it has no value.
    fn expects(self) -> Option<&'static str> {
        match self {
            Self::Code => Some(CODE),
            Self::Grace | Self::KillAfter => Some(DURATION),
            Self::ParentsEnd => Some(SIGNAL),
            Self::Rewrite => Some(REWRITE),
            _ => None,
        }
    }
}

impl Survivors {
    /// No time at all is what happens without the option.
    pub(crate) fn of(span: Milliseconds) -> Self {
        if span == Milliseconds::ZERO { Self::Left } else { Self::Terminated(span) }
    }
}

impl Options {
    /// Takes in the option `key`, which `argument` names; its value is attached to that or comes next. A request that ends
    /// the line comes back.
    fn apply<'a>(
        &mut self,
        key: Key,
        argument: &'a [u8],
        attached: Option<&'a [u8]>,
        next: &mut impl FnMut() -> Option<&'a [u8]>,
    ) -> Result<Option<Request>, Mistake<'a>> {
        if let Some(expected) = key.expects() {
            let text = attached.or_else(next).ok_or(Mistake::NoValue(argument))?;
            return match self.set(key, text) {
                Some(()) => Ok(None),
                None => Err(Mistake::WrongValue(option_name(argument), expected, text)),
            };
        }
        match key {
            Key::Adopt => self.adopts = true,
            Key::All => self.target = Target::All,
            Key::AwaitAll => self.survivors = Survivors::Awaited,
            Key::Command => {
                self.target = Target::Command;
                self.grouping = if self.grouping == Grouping::Session { Grouping::Own } else { self.grouping };
            }
            Key::Group => self.target = Target::Group,
            Key::Help => return Ok(Some(Request::Help)),
            Key::KeepGroup => self.grouping = Grouping::Parents,
            Key::Licence => return Ok(Some(Request::Licence)),
            Key::NameReaped => self.names_reaped = true,
            Key::NoAdoption => self.adopts = false,
            Key::Pause => return Ok(Some(Request::Pause)),
            Key::Verbose => self.verbose = true,
            Key::Version => return Ok(Some(Request::Version)),
            Key::Code | Key::Grace | Key::KillAfter | Key::ParentsEnd | Key::Rewrite => {}
        }
        Ok(None)
    }

    /// Takes in the value of the option `key`; `None` where it is wrong.
    fn set(&mut self, key: Key, text: &[u8]) -> Option<()> {
        match key {
            Key::Code => self.forgiven.insert(u8::try_from(numbers::decimal(text)?).ok()?),
            Key::Grace => self.survivors = Survivors::of(numbers::duration(text)?),
            Key::KillAfter => self.kill_after = Some(numbers::duration(text)?),
            Key::ParentsEnd => self.on_parents_end = Some(signals::number(text)?),
            Key::Rewrite => self.rewrites.add(text)?,
            _ => {}
        }
        Some(())
    }
}

/// The option of `argument` without a value that is attached to it.
fn option_name(argument: &[u8]) -> &[u8] {
    match argument {
        [b'-', b'-', ..] => split(argument, b'=').0,
        _ => argument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words, and what is read from them: what is asked for, and how the options differ from the defaults.
    type Case<'a> = (&'a [&'a [u8]], Read<'a>);

    type Read<'a> = Result<(Request, Options), Mistake<'a>>;

    fn run(command: usize) -> Read<'static> {
        shown(Request::Run(command))
    }

    fn shown(request: Request) -> Read<'static> {
        Ok((request, Options::default()))
    }

    fn with(command: usize, change: impl FnOnce(&mut Options)) -> Read<'static> {
        let mut options = Options::default();
        change(&mut options);
        Ok((Request::Run(command), options))
    }

    fn read<'a>(mut options: Options, arguments: &[&'a [u8]]) -> Read<'a> {
        let request = parse(&mut options, arguments.iter().copied())?;
        Ok((request, options))
    }

    fn check(cases: &[Case]) {
        for (arguments, expected) in cases {
            let words: Vec<_> = arguments.iter().map(|argument| String::from_utf8_lossy(argument)).collect();
            assert_eq!(&read(Options::default(), arguments), expected, "{words:?}");
        }
    }

    #[test]
    fn where_the_command_starts() {
        check(&[
            (&[b"--", b"dockerd"], run(2)),
            (&[b"ls", b"-l", b"--version"], run(1)),
            (&[b"-s", b"--", b"-x"], run(3)),
            (&[b"--", b"--"], run(2)),
            (&[b"-"], run(1)),
            (&[b""], run(1)),
            (&[b"\xff\xfe"], run(1)),
            (&[], Err(Mistake::NoCommand)),
            (&[b"--"], Err(Mistake::NoCommand)),
        ]);
    }

    #[test]
    fn flags() {
        check(&[
            (&[b"-g", b"--", b"true"], with(3, |options| options.target = Target::Group)),
            (&[b"-gc", b"true"], run(2)),
            (&[b"--all", b"true"], with(2, |options| options.target = Target::All)),
            (&[b"-vsw", b"--", b"true"], with(3, |options| (options.verbose, options.names_reaped) = (true, true))),
            (&[b"--keep-pgrp", b"true"], with(2, |options| options.grouping = Grouping::Parents)),
            (&[b"--no-subreaper", b"true"], with(2, |options| options.adopts = false)),
            (&[b"--wait-all", b"true"], with(2, |options| options.survivors = Survivors::Awaited)),
            (&[b"-h"], shown(Request::Help)),
            (&[b"-sh", b"true"], shown(Request::Help)),
            (&[b"--version"], shown(Request::Version)),
            (&[b"-V"], shown(Request::Version)),
            (&[b"-l"], shown(Request::Licence)),
            (&[b"-P"], shown(Request::Pause)),
        ]);
    }

    #[test]
    fn values() {
        let seconds = |seconds: u64| Milliseconds(seconds * 1000);
        check(&[
            (&[b"-e", b"143", b"true"], with(3, |options| options.forgiven.insert(143))),
            (&[b"-e143", b"-e0", b"true"], {
                with(3, |options| [143, 0].into_iter().for_each(|code| options.forgiven.insert(code)))
            }),
            (&[b"-p", b"SIGTERM", b"true"], with(3, |options| options.on_parents_end = Some(15))),
            (&[b"-r", b"TERM:QUIT", b"--rewrite=1:0", b"true"], {
                with(4, |options| {
                    options.rewrites.add(b"15:3").expect("two signals");
                    options.rewrites.add(b"HUP:0").expect("a signal and none");
                })
            }),
            (&[b"--grace", b"5s", b"true"], with(3, |options| options.survivors = Survivors::Terminated(seconds(5)))),
            (&[b"--grace=0", b"true"], run(2)),
            (&[b"--kill-after=2m", b"true"], with(2, |options| options.kill_after = Some(seconds(120)))),
            (&[b"--wait-all", b"--grace=1", b"true"], {
                with(3, |options| options.survivors = Survivors::Terminated(seconds(1)))
            }),
        ]);
    }

    #[test]
    fn mistakes() {
        check(&[
            (&[b"-x", b"true"], Err(Mistake::UnknownOption(b"-x"))),
            (&[b"--nonsense", b"true"], Err(Mistake::UnknownOption(b"--nonsense"))),
            (&[b"--all=yes", b"true"], Err(Mistake::UnknownOption(b"--all=yes"))),
            (&[b"-e"], Err(Mistake::NoValue(b"-e"))),
            (&[b"-e", b"256", b"true"], Err(Mistake::WrongValue(b"-e", CODE, b"256"))),
            (&[b"-e", b"--", b"true"], Err(Mistake::WrongValue(b"-e", CODE, b"--"))),
            (&[b"-p", b"NONE", b"true"], Err(Mistake::WrongValue(b"-p", SIGNAL, b"NONE"))),
            (&[b"-r", b"TERM", b"true"], Err(Mistake::WrongValue(b"-r", REWRITE, b"TERM"))),
            (&[b"-r", b"0:1", b"true"], Err(Mistake::WrongValue(b"-r", REWRITE, b"0:1"))),
            (&[b"--grace=soon", b"true"], Err(Mistake::WrongValue(b"--grace", DURATION, b"soon"))),
        ]);
    }

    #[test]
    fn single_child_undoes_the_defaults_of_dumb_init() {
        let session = Options { grouping: Grouping::Session, target: Target::Group, ..Options::default() };
        assert_eq!(read(session, &[b"-c", b"true"]), run(2));
    }
}
