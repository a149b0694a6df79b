//! The command line, read in place: options up to the first argument that is none, or up to `--`; then the command.
//!
//! Arguments are bytes. Options are tini's where tini has them (tini(1)); an unknown one is a mistake, never passed over.

/// What the caller wants.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// Text on stdout, then the end.
    Help,
    /// One line on stdout, then the end.
    Version,
    /// Run a command.
    Run(Options),
}

/// How to run the command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Signals go to the command's whole process group.
    pub group: bool,
    /// Start and end of the command are told on stderr.
    pub verbose: bool,
    /// Where the command stands: its index in argv, at least 1.
    pub command: usize,
}

/// Why a command line cannot be followed.
#[derive(Debug, PartialEq, Eq)]
pub enum Mistake<'a> {
    /// No such option; the whole argument.
    UnknownOption(&'a [u8]),
    /// Nothing to run.
    NoCommand,
}

/// Reads `arguments`, which are argv without argv[0].
///
/// # Errors
/// The first mistake, with the argument at fault.
pub fn parse<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> Result<Request, Mistake<'a>> {
    let mut options = Options::default();
    let mut indexed = (1..).zip(arguments);
    while let Some((index, argument)) = indexed.next() {
        match argument {
            b"--" => {
                let (command, _) = indexed.next().ok_or(Mistake::NoCommand)?;
                return Ok(Request::Run(Options { command, ..options }));
            }
            b"--help" => return Ok(Request::Help),
            b"--version" => return Ok(Request::Version),
            [b'-', b'-', ..] => return Err(Mistake::UnknownOption(argument)),
            [b'-', letters @ ..] if !letters.is_empty() => {
                for letter in letters {
                    match letter {
                        b'g' => options.group = true,
                        b'h' => return Ok(Request::Help),
                        b's' => {} // What it asks for is always done.
                        b'v' => options.verbose = true,
                        _ => return Err(Mistake::UnknownOption(argument)),
                    }
                }
            }
            _ => return Ok(Request::Run(Options { command: index, ..options })),
        }
    }
    Err(Mistake::NoCommand)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: usize) -> Result<Request, Mistake<'static>> {
        Ok(Request::Run(Options { command, ..Options::default() }))
    }

    #[test]
    fn command_lines() {
        let group = Ok(Request::Run(Options { group: true, command: 3, ..Options::default() }));
        let both = Ok(Request::Run(Options { group: true, verbose: true, command: 3 }));
        type Case<'a> = (&'a [&'a [u8]], Result<Request, Mistake<'a>>);
        let cases: &[Case] = &[
            (&[b"--", b"dockerd"], run(2)),
            (&[b"dockerd"], run(1)),
            (&[b"ls", b"-l", b"--version"], run(1)),
            (&[b"-s", b"--", b"-x"], run(3)),
            (&[b"--", b"--"], run(2)),
            (&[b"-"], run(1)),
            (&[b""], run(1)),
            (&[b"\xff\xfe"], run(1)),
            (&[b"-g", b"--", b"true"], group),
            (&[b"-vsg", b"--", b"true"], both),
            (&[b"-h"], Ok(Request::Help)),
            (&[b"--help", b"--nonsense"], Ok(Request::Help)),
            (&[b"--version"], Ok(Request::Version)),
            (&[], Err(Mistake::NoCommand)),
            (&[b"--"], Err(Mistake::NoCommand)),
            (&[b"-s"], Err(Mistake::NoCommand)),
            (&[b"-x", b"true"], Err(Mistake::UnknownOption(b"-x"))),
            (&[b"-gx", b"true"], Err(Mistake::UnknownOption(b"-gx"))),
            (&[b"--verbose", b"true"], Err(Mistake::UnknownOption(b"--verbose"))),
        ];
        for (arguments, expected) in cases {
            assert_eq!(&parse(arguments.iter().copied()), expected, "{arguments:?}");
        }
    }
}
