"""The reclaimer: deletes released addresses beside writers, without a run."""
