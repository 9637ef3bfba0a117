//! Options on the command line win over environment variables, also where two different options exclude each other.

use std::collections::BTreeSet;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::exit::Exit;

/// The options that stand on the command line, as opposed to those from the environment or a default. It adds no option
/// itself: flatten it into the arguments of a command, as the first field, since clap takes the values of a field out when it
/// has read them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExplicitOptions(BTreeSet<String>);

impl ExplicitOptions {
    /// Whether this option stands on the command line.
    pub(crate) fn contains(&self, option: &str) -> bool {
        self.0.contains(option)
    }

    /// Decides between two options that exclude each other: one on the command line clears one from elsewhere, and two on
    /// the command line are refused. Two from elsewhere both stay, and the command has a documented order for them.
    pub(crate) fn decide<A, B>(
        &self,
        (first, one): (&str, &mut Option<A>),
        (second, other): (&str, &mut Option<B>),
    ) -> anyhow::Result<()> {
        match (self.contains(first), self.contains(second)) {
            (true, true) => {
                let [first, second] = [first, second].map(|id| id.replace('_', "-"));
                return Err(Exit::Usage.because(format!("give --{first} or --{second}, not both")));
            }
            (true, false) => *other = None,
            (false, true) => *one = None,
            (false, false) => {}
        }
        Ok(())
    }
}

impl FromArgMatches for ExplicitOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_explicit = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        Ok(Self(matches.ids().map(clap::Id::as_str).filter(is_explicit).map(str::to_owned).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ExplicitOptions {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(explicit: &[&str]) -> anyhow::Result<(Option<u8>, Option<u8>)> {
        let options = ExplicitOptions(explicit.iter().map(|name| (*name).to_owned()).collect());
        let (mut one, mut other) = (Some(1), Some(2));
        options.decide(("a_b", &mut one), ("c", &mut other))?;
        Ok((one, other))
    }

    #[test]
    fn the_command_line_wins_and_two_options_on_it_are_refused() {
        assert_eq!(decided(&[]).unwrap(), (Some(1), Some(2)));
        assert_eq!(decided(&["a_b"]).unwrap(), (Some(1), None));
        assert_eq!(decided(&["c"]).unwrap(), (None, Some(2)));
        assert_eq!(decided(&["a_b", "c"]).unwrap_err().to_string(), "give --a-b or --c, not both");
    }
}
