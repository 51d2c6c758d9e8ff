//! What a launcher sets in a process's environment: its rank, and the address of process 0.

use crate::Error;
use std::ffi::OsString;
use std::ops::RangeInclusive;

/// A process of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    pub rank: usize,
    pub size: usize,
    /// The machine of process 0: a name or an address.
    pub host: String,
    /// The launcher's port; its number distinguishes this job from others on the same machine.
    pub port: u16,
}

/// More than any job has, and few enough for the memory that each one takes.
const MOST_PROCESSES: usize = 1 << 12;

/// How many ports process 0 may use, from the one after the launcher's.
const PORTS: u16 = 16;

impl Place {
    /// The ports on which process 0 may listen, and which the others try.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.port + 1..=self.port.saturating_add(PORTS)
    }

    /// Reads the environment variables with `variable`.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let text = |name| match variable(name) {
            None => Err(wrong(
                name,
                "is not set: a launcher such as torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
            )),
            Some(value) => Ok(value.to_string_lossy().trim().to_owned()),
        };
        let number = |name, least: usize, most: usize| {
            let text = text(name)?;
            let number = text.parse().ok().filter(|n| (least..=most).contains(n));
            let why = format!("is {text:?}: expected a number from {least} to {most}");
            number.ok_or_else(|| wrong(name, &why))
        };
        let size = number("WORLD_SIZE", 1, MOST_PROCESSES)?;
        let place = Self {
            rank: number("RANK", 0, size - 1)?,
            size,
            host: without_brackets(text("MASTER_ADDR")?),
            port: number("MASTER_PORT", 1, usize::from(u16::MAX) - 1)? as u16,
        };
        match place.host.is_empty() {
            true => Err(wrong(
                "MASTER_ADDR",
                "is empty; expected the host name or the address of process 0",
            )),
            false => Ok(place),
        }
    }
}

/// Removes the brackets of an IPv6 address from a URL.
fn without_brackets(host: String) -> String {
    let inside = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    inside.map_or(host.clone(), str::to_owned)
}

fn wrong(name: &'static str, why: &str) -> Error {
    let why = why.to_owned();
    Error::Variable { name, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Place, String> {
        let value = |name: &str| variables.iter().find(|(n, _)| *n == name);
        let place = Place::read(|name| value(name).map(|(_, value)| value.into()));
        place.map_err(|error| error.to_string())
    }

    #[test]
    fn the_variable_that_is_wrong_is_named() {
        let good = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", "29500"),
        ];
        let expected = Place {
            rank: 1,
            size: 2,
            host: "localhost".to_owned(),
            port: 29500,
        };
        assert_eq!(read(&good), Ok(expected.clone()));
        assert_eq!(expected.ports(), 29501..=29516);
        let mut last = good;
        last[3].1 = "65534";
        assert_eq!(read(&last).unwrap().ports(), 65535..=65535);
        let mut in_brackets = good;
        in_brackets[2].1 = "[::1]";
        assert_eq!(read(&in_brackets).unwrap().host, "::1");
        for (i, (name, _)) in good.into_iter().enumerate() {
            let mut without = good.to_vec();
            without.remove(i);
            let error = read(&without).unwrap_err();
            assert!(error.starts_with(&format!("{name} is not set")), "{error}");
        }
        for (i, value, line) in [
            (0, "2", "RANK is \"2\": expected a number from 0 to 1"),
            (
                1,
                "two",
                "WORLD_SIZE is \"two\": expected a number from 1 to 4096",
            ),
            (
                1,
                "0",
                "WORLD_SIZE is \"0\": expected a number from 1 to 4096",
            ),
            (
                2,
                " ",
                "MASTER_ADDR is empty; expected the host name or the address of process 0",
            ),
            (
                3,
                "65535", // no port is left for process 0
                "MASTER_PORT is \"65535\": expected a number from 1 to 65534",
            ),
        ] {
            let mut other = good;
            other[i].1 = value;
            assert_eq!(read(&other).unwrap_err(), line);
        }
    }
}
