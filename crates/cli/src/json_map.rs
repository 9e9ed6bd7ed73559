//! JSON objects in which no key stands twice.

use std::collections::HashSet;
use std::fmt::{self, Display};
use std::hash::Hash;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// The pairs of an object in their order. A key that stands twice is an error, which names it: whoever wrote it meant one of the
/// values, and nobody knows which.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UniqueKeys<K, V>(pub(crate) Vec<(K, V)>);

impl<'de, K, V> Deserialize<'de> for UniqueKeys<K, V>
where
    K: Deserialize<'de> + Clone + Display + Eq + Hash,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Pairs(PhantomData))
    }
}

struct Pairs<K, V>(PhantomData<(K, V)>);

impl<'de, K, V> Visitor<'de> for Pairs<K, V>
where
    K: Deserialize<'de> + Clone + Display + Eq + Hash,
    V: Deserialize<'de>,
{
    type Value = UniqueKeys<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let (mut pairs, mut seen) = (Vec::new(), HashSet::new());
        while let Some(key) = map.next_key::<K>()? {
            if !seen.insert(key.clone()) {
                return Err(Error::custom(format!("`{key}` stands twice; expected each key once")));
            }
            pairs.push((key, map.next_value()?));
        }
        Ok(UniqueKeys(pairs))
    }
}
