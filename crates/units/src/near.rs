//! Suggestions: the known word that is nearest to a misspelt one.

use std::cmp::Reverse;

/// Longest word that is compared, in bytes: longer words were not mistyped.
const LONGEST: usize = 40;
/// Letters that two words must share if one is a prefix of the other.
const BEGINNING: usize = 3;

/// The most similar of these words, if one is similar enough.
pub fn nearest_word<'w>(word: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    if word.len() > LONGEST {
        return None;
    }
    let lower = word.to_ascii_lowercase();
    words
        .into_iter()
        .filter_map(|known| {
            let distance = strsim::damerau_levenshtein(&lower, &known.to_ascii_lowercase());
            let begins = lower.len().min(known.len()) >= BEGINNING
                && (lower.starts_with(known) || known.starts_with(&lower));
            let near = distance <= 1 + known.len() / 5 && distance < known.len();
            (near || begins).then_some((Reverse(near), distance, known))
        })
        .min()
        .map(|(_, _, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_resemble() {
        let words = ["half_life", "learning", "max", "rule", "rto_max", "on"];
        for (word, meant) in [
            ("half_live", Some("half_life")),
            ("halflife", Some("half_life")),
            ("HALF_LIFE", Some("half_life")),
            ("learn", Some("learning")),
            ("maximum", Some("max")),
            ("rules", Some("rule")),
            ("ruel", Some("rule")),
            ("rto_mx", Some("rto_max")),
            ("it", None),
            ("", None),
            ("speed", None),
        ] {
            assert_eq!(nearest_word(word, words), meant, "{word}");
        }
        assert_eq!(nearest_word(&"rule".repeat(20), words), None);
    }
}
