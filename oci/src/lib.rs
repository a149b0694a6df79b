//! OCI.
