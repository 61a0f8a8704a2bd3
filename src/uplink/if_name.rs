//! Names of interfaces: what is wrong with one, before the kernel sees it.

use crate::sys::ifreq::IF_NAME_MAX;

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFault {
    /// Nothing at all.
    Empty,
    /// More than 15 bytes.
    TooLong,
    /// One of the two directory names.
    Dots,
    /// A slash, a colon, a space or a percent sign.
    Character(char),
}

impl std::fmt::Display for NameFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty"),
            Self::TooLong => write!(f, "it is longer than {IF_NAME_MAX} bytes"),
            Self::Dots => f.write_str("it names a directory"),
            Self::Character(c) => write!(f, "{c:?} is not allowed"),
        }
    }
}

/// What the kernel would refuse without saying why, `None` for a good name.
///
/// Source: `dev_valid_name`, `net/core/dev.c`; the percent sign, too, because the kernel takes it
/// for a pattern.
#[must_use]
pub fn name_fault(name: &str) -> Option<NameFault> {
    let odd = |c: char| matches!(c, '/' | ':' | '%' | '\0') || c.is_ascii_whitespace();
    if name.is_empty() {
        Some(NameFault::Empty)
    } else if name.len() > IF_NAME_MAX {
        Some(NameFault::TooLong)
    } else if name == "." || name == ".." {
        Some(NameFault::Dots)
    } else {
        name.chars().find(|&c| odd(c)).map(NameFault::Character)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_the_kernel_sees_them() {
        assert_eq!(name_fault("tap0"), None);
        assert_eq!(name_fault("fifteen-letters"), None);
        assert_eq!(name_fault("sixteen-letters!"), Some(NameFault::TooLong));
        assert_eq!(name_fault(""), Some(NameFault::Empty));
        assert_eq!(name_fault(".."), Some(NameFault::Dots));
        assert_eq!(name_fault("a/b"), Some(NameFault::Character('/')));
        assert_eq!(name_fault("tap%d"), Some(NameFault::Character('%')));
        assert_eq!(name_fault("tap 0"), Some(NameFault::Character(' ')));
    }
}
