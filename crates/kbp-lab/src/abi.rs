// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's names of kernel ABIs, such as `6.1.0-56-rt-amd64`: their parts and their order.
//!
//! Not here: which of them an archive offers ([`crate::apt`]) and which one is meant ([`crate::kernel`]).

/// The version in front and the flavour behind: `6.1.0-56` and `rt-amd64`.
fn parts(abi: &str) -> Option<(&str, &str)> {
    let starts_flavour = |(at, _): &(usize, &str)| {
        abi[at + 1..]
            .chars()
            .next()
            .is_some_and(|next| next.is_ascii_alphabetic())
    };
    let (at, _) = abi.match_indices('-').find(starts_flavour)?;
    Some((&abi[..at], &abi[at + 1..]))
}

/// Its flavour: `amd64`, `cloud-amd64`, `rt-amd64`; empty when the name has none.
pub(crate) fn flavour(abi: &str) -> &str {
    parts(abi).map_or("", |(_, flavour)| flavour)
}

/// Its line, the first two numbers: `6.1`.
pub(crate) fn line(abi: &str) -> &str {
    abi.match_indices(|letter: char| !letter.is_ascii_digit())
        .nth(1)
        .map_or(abi, |(end, _)| &abi[..end])
}

/// What orders the ABIs of a flavour: the numbers of the version, `[6, 1, 0, 56]`.
pub(crate) fn order(abi: &str) -> Vec<u64> {
    let version = parts(abi).map_or(abi, |(version, _)| version);
    version
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_debians_names() {
        for (abi, wanted) in [
            ("6.1.0-56-amd64", ("6.1", "amd64")),
            ("6.1.0-56-cloud-amd64", ("6.1", "cloud-amd64")),
            ("6.12.90+deb12.1-rt-amd64", ("6.12", "rt-amd64")),
            ("7.3.4+deb13-amd64", ("7.3", "amd64")),
            ("6.1.0-56-amd64-dbg", ("6.1", "amd64-dbg")),
            ("7.3", ("7.3", "")),
        ] {
            assert_eq!((line(abi), flavour(abi)), wanted, "{abi}");
        }
    }

    #[test]
    fn abis_are_ordered_by_their_numbers() {
        let mut abis = [
            "6.12.117+deb12-amd64",
            "6.12.90+deb12.1-amd64",
            "6.12.90+deb12-amd64",
            "6.12.101+deb12-amd64",
        ];
        abis.sort_by_key(|abi| order(abi));
        assert_eq!(
            abis,
            [
                "6.12.90+deb12-amd64",
                "6.12.90+deb12.1-amd64",
                "6.12.101+deb12-amd64",
                "6.12.117+deb12-amd64"
            ]
        );
        assert!(order("6.1.0-9-amd64") < order("6.1.0-56-amd64"));
    }
}
