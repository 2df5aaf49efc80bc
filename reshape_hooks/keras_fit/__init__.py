"""Makes a plain `model.fit` of Keras 3 on TensorFlow save when it is asked to stop and resume at that batch."""
