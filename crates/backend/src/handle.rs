//! Handles: plain indices into what one backend owns. They are `Copy`, carry their shape where a model needs it, and
//! are only meaningful for the backend that made them.

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty),* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            /// Index in the backend's list of its kind.
            pub index: u32,
            $($(#[$field_doc])* pub $field: $type,)*
        }
    };
}

handle! {
    /// Activations `[rows, width]` f32, one row per row of the pass (or per slot, where an op says so).
    Buf {
        /// Values in a row.
        width: u32
    }
}
handle! {
    /// A packed weight matrix `[outputs, inputs]`.
    Matrix {
        /// Outputs; of a gated matrix, half of its stored outputs (the width of what it produces).
        outputs: u32,
        /// Inputs.
        inputs: u32
    }
}
handle! {
    /// A vector of f32 parameters (norm weights, scales).
    Vector {
        /// Number of values.
        len: u32
    }
}
handle! {
    /// A table of rows that are gathered by token id.
    Table {
        /// Values in a row.
        width: u32
    }
}
handle! {
    /// Rotary frequencies of one kind of layer.
    Rope {}
}
handle! {
    /// The experts of one layer: a gated and a down matrix each.
    Experts {
        /// Number of experts.
        count: u32
    }
}
handle! {
    /// An output head whose tokens are grouped in clusters of equal size.
    ClusterHead {
        /// Tokens of a cluster.
        cluster_size: u32
    }
}
handle! {
    /// K/V layers with one head size and one window: one block table per slot.
    KvGroup {}
}

/// One layer's K/V inside a [`KvGroup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayer {
    /// The group.
    pub group: KvGroup,
    /// Index of the layer inside the group.
    pub layer: u32,
}
